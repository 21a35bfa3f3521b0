package appconfig

import (
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/BurntSushi/toml"
	"github.com/google/jsonschema-go/jsonschema"
)

// resolved returns the schema, and a function that validates a text by it.
func resolved(t *testing.T) (*jsonschema.Schema, func(text string) error) {
	t.Helper()
	b, err := Schema()
	if err != nil {
		t.Fatal(err)
	}
	s := &jsonschema.Schema{}
	if err := json.Unmarshal(b, s); err != nil {
		t.Fatal(err)
	}
	r, err := s.Resolve(nil)
	if err != nil {
		t.Fatal(err)
	}
	return s, func(text string) error {
		var doc map[string]any
		if _, err := toml.Decode(text, &doc); err != nil {
			return err
		}
		b, err := json.Marshal(doc)
		if err == nil {
			err = json.Unmarshal(b, &doc)
		}
		if err != nil {
			return err
		}
		return r.Validate(doc)
	}
}

// TestSchemaTakesWhatParseTakes, for every app.toml of this repository.
func TestSchemaTakesWhatParseTakes(t *testing.T) {
	_, validate := resolved(t)
	texts := map[string]string{
		"every key": everyKey,
		"disks":     "[services.web.volumes.shop-data]\npath = \"/data\"\nsize = \"10 GB\"\nread_only = true\n",
		"snapshots": "[services.web.volumes.shop-data]\npath = \"/data\"\nsnapshots = { cron = \"@daily\", time_zone = \"UTC\", keep = 7, keep_for = \"720h\" }\n",
		"zero":      "[services.web]\nstop_timeout = \"0\"\nmemory = 1073741824\ncpu = 1\n",
		"check":     "[services.web]\nchecks.live = true\n",
	}
	found := 0
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (strings.HasPrefix(d.Name(), ".") && d.Name() != ".runtime" && d.Name() != ".." || d.Name() == "node_modules" || d.Name() == "bin") {
			return fs.SkipDir
		}
		if d.Name() != "app.toml" {
			return nil
		}
		b, err := os.ReadFile(path)
		found++
		texts[path] = string(b)
		return err
	})
	if err != nil || found < 3 {
		t.Fatalf("%d files, %v", found, err)
	}
	for name, text := range texts {
		_, err := Parse("app.toml", text)
		if invalid := validate(text); err == nil && invalid != nil {
			t.Errorf("%s: %v", name, invalid)
		}
	}
}

// TestSchemaShowsMistakes that an editor can find.
func TestSchemaShowsMistakes(t *testing.T) {
	_, validate := resolved(t)
	for name, text := range map[string]string{
		"unknown key":              "nme = \"x\"\n",
		"unknown key of a service": "[services.web]\nreplica = 2\n",
		"name of a service":        "[services.Web]\nport = 1\n",
		"kind":                     "[services.web]\nport = \"80\"\n",
		"range":                    "[services.web]\nport = 70000\n",
		"choice":                   "[build]\nstack = \"cobol\"\n",
		"duration":                 "[services.web]\nhealth_deadline = \"soon\"\n",
		"memory":                   "[services.web]\nmemory = \"lots\"\n",
		"task without a command":   "[tasks.a]\ntimeout = \"1m\"\n",
		"snapshots without times":  "[services.web.volumes.data]\npath = \"/data\"\nsnapshots.keep = 3\n",
		"disk without a path":      "[services.web.volumes.data]\nread_only = true\n",
		"check":                    "[services.web.checks]\nlife = false\n",
		"variable":                 "[env]\n\"A-B\" = \"x\"\n",
	} {
		if validate(text) == nil {
			t.Errorf("%s is valid", name)
		}
		if _, err := Parse("app.toml", text); err == nil {
			t.Errorf("Parse takes %s", name)
		}
	}
}

// TestEveryDescriptionHasItsKey: no text is left of a key that went.
func TestEveryDescriptionHasItsKey(t *testing.T) {
	s, _ := resolved(t)
	for key := range descriptions {
		at := s
		for part := range strings.SplitSeq(key, ".") {
			next := at.Properties[part]
			if part == "*" {
				for _, next = range at.PatternProperties {
				}
			}
			if next == nil {
				t.Errorf("there is no key %s", key)
				break
			}
			at = next
		}
	}
}
