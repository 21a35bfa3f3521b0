package deptest

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

// maxColumns is where a line of a document is wrapped, in characters.
const maxColumns = 120

// plans are not checked: they are gone when their work is done.
const plans = "docs/plans/"

// linkTarget is the part of a link that a reader of the rendered text does not
// see.
var linkTarget = regexp.MustCompile(`\]\([^)\s]+\)`)

func TestDocsLinesAreWrapped(t *testing.T) {
	dir := root(t)
	walk(t, func(path string) {
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasSuffix(rel, ".md") || strings.HasPrefix(rel, plans) {
			return
		}
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		first, _, _ := strings.Cut(string(b), "\n")
		if strings.Contains(first, "enerated by") {
			return // as long as its source
		}
		for i, line := range strings.Split(string(b), "\n") {
			if strings.HasPrefix(strings.TrimSpace(line), "|") {
				continue // a row of a table cannot be wrapped
			}
			if n := utf8.RuneCountInString(linkTarget.ReplaceAllString(line, "]")); n > maxColumns {
				t.Errorf("%s:%d has %d columns: wrap it at %d", rel, i+1, n, maxColumns)
			}
		}
	})
}

// opening are the items of the list that a decision record opens with.
var opening = []string{"Problem", "Decision", "Cost", "Rejected", "Look again"}

func TestDecisionsOpenWithFiveLines(t *testing.T) {
	records, err := filepath.Glob(filepath.Join(root(t), "docs", "decisions", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	if len(records) == 0 {
		t.Fatal("there are no decision records")
	}
	for _, path := range records {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if missing := withoutOpening(string(b)); missing != "" {
			t.Errorf("%s does not open, after its title, with a list of %s: there is no %s", filepath.Base(path), strings.Join(opening, ", "), missing)
		}
	}
}

// withoutOpening returns the first item that a decision record lacks at its
// place, or "".
func withoutOpening(text string) string {
	_, rest, _ := strings.Cut(text, "\n\n")
	for _, name := range opening {
		after, ok := strings.CutPrefix(rest, "- **"+name+"**: ")
		if !ok {
			return name
		}
		// The next item begins after the lines that continue this one.
		_, rest, _ = strings.Cut(after, "\n")
		for strings.HasPrefix(rest, "  ") {
			_, rest, _ = strings.Cut(rest, "\n")
		}
	}
	return ""
}

func TestDecisionsWithoutOpeningAreFound(t *testing.T) {
	const whole = "# 1. Title\n\n- **Problem**: a\n  b\n- **Decision**: c\n- **Cost**: d\n- **Rejected**: e\n- **Look again**: f\n\nNotes.\n"
	if missing := withoutOpening(whole); missing != "" {
		t.Errorf("%s is missing in a whole record", missing)
	}
	for _, name := range opening {
		if missing := withoutOpening(strings.Replace(whole, "**"+name+"**", "**Else**", 1)); missing != name {
			t.Errorf("without %s, %q is missing", name, missing)
		}
	}
}
