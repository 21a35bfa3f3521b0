//go:build corpus

package buildkit

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"text/tabwriter"
	"time"
)

// TestCorpus builds, serves and restarts every source of testdata/corpus and testdata/sources, and prints a table of
// what came out. Some need base images that no other test does, which take minutes to make. With CORPUS set, only the
// sources whose names begin with one of its words are built.
func TestCorpus(t *testing.T) {
	e := newEnv(t)
	var table strings.Builder
	w := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "source\tstack\tbuild and first start\trestart\tresult")
	sources := append(readSources(t, "corpus"), readSources(t, "sources")...)
	ran := 0
	for _, tt := range sources {
		if !wanted(tt.name) {
			continue
		}
		ran++
		name, took, again, result := "?", "", "", "failed"
		t.Run(tt.name, func(t *testing.T) {
			start := time.Now()
			root, res, plan := testSource(t, e, tt)
			name, took = plan.Stack, time.Since(start).Round(100*time.Millisecond).String()
			start = time.Now()
			e.servesAt(t, root, res, plan, tt.path, strings.Split(tt.serves, ",")[0])
			again = time.Since(start).Round(10 * time.Millisecond).String()
			if !t.Failed() {
				result = "works"
			}
		})
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", tt.name, name, took, again, result)
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	if ran == 0 {
		t.Fatalf("no source is called %q", os.Getenv("CORPUS"))
	}
	fmt.Print("\n" + table.String())
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
