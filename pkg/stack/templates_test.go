package stack

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"miren.dev/runtime/pkg/appconfig"
	"miren.dev/runtime/pkg/errs"
)

// TestTemplates plans sources that repeat the idioms of popular templates: testdata has one in each file. Lines before
// the first file say what must be found: "start: command (file that decided it)"; "has:" and "lacks:" are texts of the
// Dockerfile or the reasons.
func TestTemplates(t *testing.T) {
	found, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(found) == 0 {
		t.Fatal(found, err)
	}
	for _, file := range found {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			head, files, ok := strings.Cut(string(b), "\n-- ")
			if !ok {
				t.Fatal("it has no files")
			}
			fsys := folder("-- " + files)
			p, err := detect(t, "-- "+files)
			if err != nil {
				t.Fatal(err, errs.HintOf(err))
			}
			var facts []string
			for _, f := range p.Facts {
				text := f.What + ": " + f.Value
				if f.From != "" {
					text += " (" + f.From + ")"
				}
				facts = append(facts, text)
			}
			all := p.Dockerfile + strings.Join(append(p.Reasons, p.Warnings...), "\n")
			for line := range strings.Lines(head) {
				line = strings.TrimSpace(line)
				if text, ok := strings.CutPrefix(line, "has: "); ok {
					if !strings.Contains(all, text) {
						t.Errorf("%q is not in:\n%s", text, all)
					}
				} else if text, ok := strings.CutPrefix(line, "lacks: "); ok {
					if strings.Contains(all, text) {
						t.Errorf("%q is in:\n%s", text, all)
					}
				} else if !slices.Contains(facts, line) {
					t.Errorf("%q is not among:\n%s", line, strings.Join(facts, "\n"))
				}
			}
			standalone(t, fsys, p)
		})
	}
}

// standalone says that the Dockerfile of a plan, written into the folder, is planned to the same port and images.
func standalone(t *testing.T, fsys fstest.MapFS, p *Plan) {
	t.Helper()
	fsys["Dockerfile"] = &fstest.MapFile{Data: []byte(p.Standalone())}
	cfg, err := appconfig.Load(fsys)
	if err != nil {
		t.Fatal(err)
	}
	own, err := Detect(fsys, cfg)
	if err != nil {
		t.Fatal(err)
	}
	if own.Stack != "dockerfile" || !slices.Equal(own.Bases, p.Bases) || len(own.Services) != len(p.Services) || *own.Services[0].Port != *p.Services[0].Port {
		t.Errorf("written as Dockerfile: %+v", own)
	}
}
