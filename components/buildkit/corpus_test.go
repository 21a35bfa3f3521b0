//go:build corpus

package buildkit

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"text/tabwriter"
	"time"
)

// TestCorpus builds, serves and restarts every source of testdata/corpus, testdata/sources and testdata/public.toml, and
// prints a table of what came out. Some need base images that no other test does, which take minutes to make. With CORPUS set, only the
// sources whose names begin with one of its words are built.
func TestCorpus(t *testing.T) {
	e := newEnv(t)
	var table strings.Builder
	w := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "source\tstack\tbuild and first start\trestart\tresult")
	sources := append(readSources(t, "corpus"), readSources(t, "sources")...)
	ran := 0
	for _, tt := range sources {
		if wanted(tt.name) {
			ran++
			row(t, w, e, func(*testing.T) sourceTest { return tt }, tt.name)
		}
	}
	for _, s := range readPublic(t) {
		if !wanted(s.Name) {
			continue
		}
		ran++
		if s.Fails == "" {
			row(t, w, e, s.test, s.Name)
			continue
		}
		result := "fails, as docs/stacks.md says"
		if out := failing(t, s.Name); !strings.Contains(out, s.Error) {
			t.Errorf("%s: its failure should have %q:\n%s", s.Name, s.Error, out)
			result = "not as docs/stacks.md says"
		}
		fmt.Fprintf(w, "%s\t\t\t\t%s\n", s.Name, result)
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	if ran == 0 {
		t.Fatalf("no source is called %q", os.Getenv("CORPUS"))
	}
	fmt.Print("\n" + table.String())
}

// row builds, serves and restarts a source, and writes its row of the table.
func row(t *testing.T, w io.Writer, e *env, source func(*testing.T) sourceTest, name string) {
	stack, took, again, result := "?", "", "", "failed"
	t.Run(name, func(t *testing.T) {
		tt := source(t)
		start := time.Now()
		root, res, plan := testSource(t, e, tt)
		stack, took = plan.Stack, time.Since(start).Round(100*time.Millisecond).String()
		start = time.Now()
		e.servesAt(t, root, res, plan, tt.path, strings.Split(tt.serves, ",")[0])
		again = time.Since(start).Round(10 * time.Millisecond).String()
		if !t.Failed() {
			result = "works"
		}
	})
	fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", name, stack, took, again, result)
}

// inner is the variable that has TestPublicSourceFails build one source.
const inner = "CORPUS_FAILS"

// failing runs a test that fails, as a program of its own, and returns what it writes.
func failing(t *testing.T, name string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^TestPublicSourceFails$", "-test.timeout", "20m")
	cmd.Env = append(os.Environ(), inner+"="+name)
	out, err := cmd.CombinedOutput()
	if err == nil {
		t.Errorf("%s works, but docs/stacks.md says that it fails", name)
	}
	return string(out)
}

// TestPublicSourceFails builds the source that failing names.
func TestPublicSourceFails(t *testing.T) {
	for _, s := range readPublic(t) {
		if s.Name == os.Getenv(inner) {
			testSource(t, newEnv(t), s.test(t))
		}
	}
}

func wanted(name string) bool {
	words := strings.Fields(os.Getenv("CORPUS"))
	for _, w := range words {
		if strings.HasPrefix(name, w) {
			return true
		}
	}
	return len(words) == 0
}
