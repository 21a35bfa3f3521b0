package console

import (
	"bytes"
	"strings"
	"testing"

	"miren.dev/runtime/pkg/errs"
)

func TestFilterAndSort(t *testing.T) {
	headers := []string{"NAME", "STATE", "MEMORY RESERVED", "AGE"}
	for _, tc := range []struct {
		name    string
		filters []string
		sort    string
		want    string // names, in their order
		err     string
	}{
		{"all", nil, "", "b a c", ""},
		{"equal", []string{"state=Running"}, "", "b c", ""},
		{"not equal", []string{"STATE!=running"}, "", "a", ""},
		{"contains", []string{"state~topp"}, "", "a", ""},
		{"several", []string{"state=running", "name!=b"}, "", "c", ""},
		{"a value with an operator", []string{"name=a=b"}, "", "", ""},
		{"by text", nil, "name", "a b c", ""},
		{"descending", nil, "-name", "c b a", ""},
		{"by size", nil, "memory-reserved", "c b a", ""},
		{"by age", nil, "-age", "a b c", ""},
		{"no column", []string{"phase=running"}, "", "", `there is no column "phase"`},
		{"no column to sort by", nil, "size", "", `there is no column "size"`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var out bytes.Buffer
			c := &Console{Out: &out, Color: true}
			for _, f := range tc.filters {
				if err := c.AddFilter(f); err != nil {
					t.Fatal(err)
				}
			}
			c.SortBy(tc.sort)
			c.Table(headers, [][]string{
				{"b", c.Paint(Red, "running"), "900 MiB", "90m"},
				{"a", "stopped", "1.5 GiB", "2d"},
				{"c", "running", "20 KiB", "100s"},
			})
			err := c.TableError()
			if tc.err != "" {
				if !errs.Is(err, errs.InvalidArgument) || !strings.Contains(err.Error(), tc.err) || !strings.Contains(errs.HintOf(err), "memory reserved") {
					t.Errorf("error %v, hint %q", err, errs.HintOf(err))
				}
				return
			}
			var names []string
			for line := range strings.Lines(out.String()) {
				name, _, _ := strings.Cut(line, "\t")
				names = append(names, name)
			}
			if got := strings.Join(names, " "); err != nil || got != tc.want {
				t.Errorf("%q, want %q; %v", got, tc.want, err)
			}
		})
	}
	if err := new(Console).AddFilter("running"); !errs.Is(err, errs.InvalidArgument) {
		t.Errorf("a filter without a column: %v", err)
	}
}
