package baseimage

import (
	"archive/tar"
	"bytes"
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"miren.dev/runtime/pkg/errs"
)

func TestNamesMapToRecipes(t *testing.T) {
	for name, want := range map[string]Ref{
		"runtime/debian":                  {Name: "debian"},
		"runtime/go:1.26":                 {Name: "go", Version: "1.26"},
		"runtime/static":                  {Name: "static"},
		"runtime/sandbox":                 {Name: "sandbox"},
		"runtime/sandbox:java":            {Name: "sandbox", Version: "java"},
		"debian":                          {Name: "debian"},
		"debian:latest":                   {Name: "debian"},
		"debian:bookworm-slim":            {Name: "debian", Release: "bookworm"},
		"debian:12.5":                     {Name: "debian", Release: "bookworm"},
		"debian:13-slim":                  {Name: "debian", Release: "trixie"},
		"debian:11":                       {Name: "debian", Release: "bullseye"},
		"debian:stable-slim":              {Name: "debian"},
		"docker.io/library/golang:1.26.3": {Name: "go-cgo", Version: "1.26.3"},
		"golang:1.25-bookworm":            {Name: "go-cgo", Version: "1.25", Release: "bookworm"},
		"node":                            {Name: "node"},
		"node:lts-slim":                   {Name: "node"},
		"node:20.11-bookworm-slim":        {Name: "node", Version: "20.11", Release: "bookworm"},
		"python:3.13-slim-trixie":         {Name: "python", Version: "3.13", Release: "trixie"},
		"runtime/python:3.10-3.13":        {Name: "python", Version: "3.10-3.13"},
		"python:3.12-slim":                {Name: "python", Version: "3.12"},
		"runtime/php:8.2-8.4":             {Name: "php", Version: "8.2-8.4"},
		"runtime/ruby-build:3.3":          {Name: "ruby-build", Version: "3.3"},
		"runtime/rust":                    {Name: "rust"},
		"runtime/deno:2.1":                {Name: "deno", Version: "2.1"},
	} {
		if got, err := Lookup(name); err != nil || got != want {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	if got, err := Lookup("node:20-alpine"); err != nil || got.Name != "node" || !strings.Contains(got.Note, "apk") {
		t.Errorf("node:20-alpine: %+v, %v", got, err)
	}
	for _, name := range []string{"alpine", "alpine:3.20", "static", "sandbox:base", "deno", "ruby:3.3", "rust", "nginx", "ghcr.io/x/y", "debian@sha256:" + strings.Repeat("a", 64), "someone/golang"} {
		if got, err := Lookup(name); !errs.Is(err, errs.NotFound) || errs.HintOf(err) == "" {
			t.Errorf("%s: %+v, %v (hint %q)", name, got, err, errs.HintOf(err))
		}
	}
	if _, err := Lookup("UPPER CASE"); !errs.Is(err, errs.InvalidArgument) {
		t.Errorf("bad name: %v", err)
	}
}

func TestUnknownSandboxImageIsAnsweredWithThoseThatExist(t *testing.T) {
	s := New(Config{Dir: t.TempDir()})
	for name, want := range map[string]string{"runtime/sandbox:jave": "did you mean runtime/sandbox:java?", "runtime/sandbox:fortran": "rust, java"} {
		ref, err := Lookup(name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err = s.Ensure(t.Context(), ref, nil); !errs.Is(err, errs.NotFound) || !strings.Contains(errs.HintOf(err), want) {
			t.Errorf("%s: %v (hint %q), want %q", name, err, errs.HintOf(err), want)
		}
	}
}

func TestSandboxImagesAreOfTheNewestRelease(t *testing.T) {
	for own, want := range map[string]string{"debian bookworm": "trixie", "debian trixie": "trixie", "ubuntu jammy": "noble", "debian forky": ""} {
		id, codename, _ := strings.Cut(own, " ")
		if got := (&host{id: id, codename: codename}).newest(); got != want {
			t.Errorf("on %s: %q, want %q", own, got, want)
		}
	}
}

func TestImageChangesWithWhatItIsMadeFrom(t *testing.T) {
	seen := map[string]string{}
	for _, i := range sandboxImages {
		inputs, err := i.inputs()
		if err != nil {
			t.Fatal(err)
		}
		script := slices.Contains(inputs, "sandbox/"+i.name+".sh")
		if want := slices.Contains([]string{"base", "typescript", "code-interpreter", "java"}, i.name); script != want {
			t.Errorf("%s depends on a script: %v, want %v", i.name, script, want)
		}
		if !slices.Contains(inputs, "sandbox/all.sh") || !slices.Contains(inputs, "sandbox/pyc.sh") {
			t.Errorf("%s does not depend on the scripts of all images", i.name)
		}
		key := (&recipe{inputs: inputs}).key()
		if other := seen[key]; other != "" {
			t.Errorf("%s has the inputs of %s", i.name, other)
		}
		seen[key] = i.name
	}
	if java, _ := sandboxImages[slices.IndexFunc(sandboxImages, func(i sandboxImage) bool { return i.name == "java" })].inputs(); !slices.Contains(java, "sandbox/java/usr/local/bin/java-install") {
		t.Errorf("java does not depend on its files: %q", java)
	}
	root, user := &recipe{}, &recipe{user: "user"}
	if root.key() == user.key() {
		t.Error("the user makes no other image")
	}
}

func TestPythonComesFromTheReleaseThatHasIt(t *testing.T) {
	list := offers(pythonLanguage, &host{id: "debian", codename: "bookworm"}, "")
	for want, expect := range map[string]offer{
		"": {"3.11", "bookworm"}, "3": {"3.11", "bookworm"}, "3.13": {"3.13", "trixie"}, "3.11.4": {"3.11", "bookworm"},
		"3.9-3.14": {"3.11", "bookworm"}, "3.12-3.14": {"3.13", "trixie"}, "3.12-": {"3.13", "trixie"},
	} {
		if got, err := choose(pythonLanguage, list, want, ""); err != nil || got != expect {
			t.Errorf("%q: %+v, %v", want, got, err)
		}
	}
	for _, want := range []string{"3.12", "3.1", "3.14-", "2.7"} {
		_, err := choose(pythonLanguage, list, want, "")
		if !errs.Is(err, errs.NotFound) || !strings.Contains(err.Error(), "3.11 and 3.13") || errs.HintOf(err) == "" {
			t.Errorf("%q: %v (hint %q)", want, err, errs.HintOf(err))
		}
	}
	if got, err := choose(pythonLanguage, list, "3", "trixie"); err != nil || got.version != "3.13" {
		t.Errorf("of trixie: %+v, %v", got, err)
	}
	// An unknown release has the version of its package index.
	if got := offers(pythonLanguage, &host{id: "debian", codename: "forky"}, "3.14"); got[0] != (offer{"3.14", "forky"}) || len(got) != 3 {
		t.Errorf("a newer host: %v", got)
	}
}

func TestSourcesOfAnotherRelease(t *testing.T) {
	h := &host{id: "debian", codename: "bookworm", sources: []string{"deb http://m/debian bookworm main", "deb http://s/debian bookworm-security main"}}
	other, err := h.as("trixie")
	if err != nil || !slices.Equal(other.sources, []string{"deb http://m/debian trixie main", "deb http://s/debian trixie-security main"}) || h.codename != "bookworm" {
		t.Errorf("got %+v, %v", other, err)
	}
	for _, name := range []string{"bullseye", "noble"} {
		if _, err := h.as(name); !errs.Is(err, errs.NotFound) || errs.HintOf(err) == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestHostFiles(t *testing.T) {
	h := parseRelease([]byte("ID=debian\nVERSION_CODENAME=trixie\n"))
	if h.id != "debian" || h.codename != "trixie" {
		t.Errorf("debian: %+v", h)
	}
	if h := parseRelease([]byte("ID=\"fedora\"\n")); h.id != "debian" || h.codename != "bookworm" {
		t.Errorf("another distribution: %+v", h)
	}
	list := "# deb http://x/debian trixie main\ndeb [arch=amd64 signed-by=/k] http://m/debian/ trixie main contrib # c\ndeb-src http://m/debian trixie main\ndeb https://third/party stable main\ndeb http://m/debian trixie-backports main\n"
	if got := parseList([]byte(list), "trixie"); !slices.Equal(got, []string{"deb http://m/debian trixie main"}) {
		t.Errorf("list: %q", got)
	}
	stanzas := "Types: deb deb-src\nURIs: http://m/debian\nSuites: trixie\n trixie-updates\n# comment\nComponents: main non-free\nSigned-By:\n -----BEGIN\n\nTypes: deb\nEnabled: no\nURIs: http://n/debian\nSuites: trixie\nComponents: main\n\nTypes: deb\nURIs: http://o/node\nSuites: nodistro\nComponents: main\n"
	if got := parseDeb822([]byte(stanzas), "trixie"); !slices.Equal(got, []string{"deb http://m/debian trixie main", "deb http://m/debian trixie-updates main"}) {
		t.Errorf("stanzas: %q", got)
	}
	if got := parseAptConfig([]byte("APT::X \"1\";\nAcquire::Check-Date \"false\";\n")); got != "Acquire::Check-Date \"false\";\n" {
		t.Errorf("configuration: %q", got)
	}
}

func TestNewestAvailableVersionIsChosen(t *testing.T) {
	s := New(Config{Dir: t.TempDir()})
	asked := 0
	have := []string{"20.1.0", "20.9.1", "20.10.0", "20.11.0-rc1", "21.0.0", "2.0.0"}
	p := product{
		name: "thing",
		list: func(context.Context) ([]string, error) { asked++; return have, nil },
		offered: func(_ context.Context, v string) error {
			if v == "20.10.0" {
				return errs.New(errs.NotFound, "held back")
			}
			return nil
		},
	}
	for want, expect := range map[string]string{"20": "20.9.1", "20.1": "20.1.0", "21": "21.0.0", "2": "2.0.0", "20.9.1": "20.9.1"} {
		if got, err := s.choose(t.Context(), p, want); err != nil || got != expect {
			t.Errorf("%s: %s, %v", want, got, err)
		}
	}
	if asked != 1 {
		t.Errorf("asked %d times", asked)
	}
	if _, err := s.choose(t.Context(), p, "22"); !errs.Is(err, errs.NotFound) || asked != 2 {
		t.Errorf("none: %v, asked %d times", err, asked)
	}
	// A version newer than the last answer makes it ask; without an answer the last one is used.
	have = append(have, "22.0.0")
	if got, err := s.choose(t.Context(), p, "22"); err != nil || got != "22.0.0" {
		t.Errorf("new: %s, %v", got, err)
	}
	p.list = func(context.Context) ([]string, error) { return nil, errs.New(errs.Unavailable, "away") }
	if got, err := s.choose(t.Context(), p, "21"); err != nil || got != "21.0.0" {
		t.Errorf("away: %s, %v", got, err)
	}
	p.name = "other"
	if _, err := s.choose(t.Context(), p, "21"); !errs.Is(err, errs.Unavailable) {
		t.Errorf("never asked: %v", err)
	}
}

// TestRecipeIsMadeOnce: several callers that ask for an image of a recipe get one build.
func TestRecipeIsMadeOnce(t *testing.T) {
	s := New(Config{Dir: filepath.Join(t.TempDir(), "images")})
	made := 0
	base := &recipe{name: "base", version: "1", env: []string{"A=1", "B=1"}, make: func(_ context.Context, b *builder) error {
		made++
		return b.layer(func(tw *tar.Writer) error { return put(tw, "a", 0o644, 1, bytes.NewReader([]byte("a"))) })
	}}
	top := &recipe{name: "top", version: "1", parent: base, env: []string{"B=2"}, cmd: []string{"x"}, make: func(_ context.Context, b *builder) error {
		made++
		return b.layer(func(tw *tar.Writer) error { return putLink(tw, "b", "a") })
	}}
	type result struct {
		img *Image
		err error
	}
	results := make(chan result)
	for range 4 {
		other := New(s.cfg) // as another process would
		go func() {
			img, err := other.ensure(t.Context(), top, func(string) {})
			results <- result{img, err}
		}()
	}
	var first *Image
	for range 4 {
		r := <-results
		if r.err != nil {
			t.Fatal(r.err)
		}
		if first == nil {
			first = r.img
		} else if *r.img != *first {
			t.Errorf("%+v and %+v", r.img, first)
		}
	}
	if made != 2 {
		t.Errorf("made %d times", made)
	}
	m, c, err := first.read()
	if err != nil || len(m.Layers) != 2 || len(c.RootFS.DiffIDs) != 2 || !slices.Equal(c.Config.Env, []string{"A=1", "B=2"}) || c.Config.Cmd[0] != "x" {
		t.Errorf("%+v %+v %v", m, c, err)
	}
	// A recipe that fails leaves nothing.
	bad := &recipe{name: "bad", version: "1", make: func(context.Context, *builder) error { return errs.New(errs.Unavailable, "no network") }}
	if _, err := s.ensure(t.Context(), bad, func(string) {}); !errs.Is(err, errs.Unavailable) {
		t.Errorf("got %v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(s.cfg.Dir, ".tmp-*")); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	if (&recipe{name: "bad", version: "1", inputs: []string{"x"}}).key() == bad.key() {
		t.Error("another input gives the same key")
	}
}

func TestRegistryPolicyDecidesPulls(t *testing.T) {
	for policy, want := range map[Policy]bool{RegistryAlways: true, RegistryNever: false} {
		s := New(Config{Dir: t.TempDir(), Registry: policy})
		if s.pull(t.Context()) != want {
			t.Errorf("%s", policy)
		}
	}
	s := New(Config{Dir: t.TempDir(), Registry: RegistryAlways})
	images, notes, err := s.Resolve(t.Context(), []string{"golang:1.26", "ghcr.io/a/b"}, nil)
	if err != nil || len(images) != 0 || len(notes) != 0 {
		t.Errorf("pulled: %v %v %v", images, notes, err)
	}
	s = New(Config{Dir: t.TempDir(), Registry: RegistryNever})
	if _, _, err := s.Resolve(t.Context(), []string{"nginx"}, nil); !errs.Is(err, errs.NotFound) {
		t.Errorf("cannot be made: %v", err)
	}
}

func TestLanguagesComeFromTheReleaseThatHasThem(t *testing.T) {
	bookworm := &host{id: "debian", codename: "bookworm"}
	for _, tt := range []struct {
		language language
		want     string
		offer    offer
	}{
		{phpLanguage, "", offer{"8.2", "bookworm"}}, {phpLanguage, "8.3-", offer{"8.4", "trixie"}}, {phpLanguage, "8.1-8.2", offer{"8.2", "bookworm"}},
		{rubyLanguage, "3.3.5", offer{"3.3", "trixie"}}, {javaLanguage, "11-", offer{"17", "bookworm"}}, {javaLanguage, "18-", offer{"21", "trixie"}},
		// A later Rust builds what an earlier one does.
		{rustLanguage, "", offer{"1.85", "trixie"}}, {rustLanguage, "1.70-", offer{"1.85", "trixie"}},
	} {
		if got, err := choose(tt.language, offers(tt.language, bookworm, ""), tt.want, ""); err != nil || got != tt.offer {
			t.Errorf("%s %q: %+v, %v", tt.language.title, tt.want, got, err)
		}
	}
	if got := offers(rustLanguage, &host{id: "debian", codename: "trixie"}, ""); got[0] != (offer{"1.85", "trixie"}) {
		t.Errorf("on trixie: %+v", got)
	}
	for want, l := range map[string]language{"1.90-": rustLanguage, "3.4": rubyLanguage, "25-": javaLanguage, "8.3": phpLanguage} {
		if _, err := choose(l, offers(l, bookworm, ""), want, ""); !errs.Is(err, errs.NotFound) || errs.HintOf(err) == "" {
			t.Errorf("%s %s: %v", l.title, want, err)
		}
	}
}

// TestPackagedImagesChangeWithTheirFiles makes recipes without their images.
func TestPackagedImagesChangeWithTheirFiles(t *testing.T) {
	s := New(Config{Dir: t.TempDir()})
	keys := map[string]string{}
	for i := range packagedImages {
		p := &packagedImages[i]
		r, err := s.packaged(t.Context(), p, "", "")
		if err != nil {
			t.Fatal(p.name, err)
		}
		if other := keys[r.key()]; other != "" {
			t.Errorf("%s is the image %s", p.name, other)
		}
		keys[r.key()] = p.name
		_, none := os.Stat(filepath.Join("apps", p.name))
		if files, err := filesOf(p.name); err != nil || (len(files) > 0) != (none == nil) {
			t.Errorf("%s has %d files, %v", p.name, len(files), err)
		}
	}
}
