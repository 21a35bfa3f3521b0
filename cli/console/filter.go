package console

import (
	"cmp"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"miren.dev/runtime/pkg/errs"
)

// filter keeps the rows of a table whose cell of a column is the value, or is not, or contains it.
type filter struct{ column, op, value string }

// operators of a filter.
var operators = []string{"!=", "~", "="}

// AddFilter has tables show only some of their rows: those for which COLUMN=TEXT, COLUMN!=TEXT or COLUMN~TEXT (contains)
// holds. Case does not matter. With several all hold. Errors have class InvalidArgument.
func (c *Console) AddFilter(text string) error {
	at, op := -1, ""
	for _, o := range operators {
		if i := strings.Index(text, o); i > 0 && (at < 0 || i < at) {
			at, op = i, o
		}
	}
	if at < 0 {
		return errs.New(errs.InvalidArgument, "%q is no filter", text).
			WithHint("COLUMN=TEXT, COLUMN!=TEXT or COLUMN~TEXT (contains), such as state=running")
	}
	c.filters = append(c.filters, filter{text[:at], op, strings.ToLower(text[at+len(op):])})
	return nil
}

// SortBy has tables order their rows by a column, descending if a minus is before its name. Numbers, sizes and ages are
// compared as such.
func (c *Console) SortBy(column string) { c.sort = column }

// Filtered reports whether AddFilter or SortBy were called.
func (c *Console) Filtered() bool { return len(c.filters) > 0 || c.sort != "" }

// TableError returns InvalidArgument if a filter, or the order, named a column that a printed table does not have.
func (c *Console) TableError() error { return c.tableErr }

func (f filter) holds(cell string) bool {
	cell = strings.ToLower(cell)
	switch f.op {
	case "~":
		return strings.Contains(cell, f.value)
	case "!=":
		return cell != f.value
	}
	return cell == f.value
}

// column returns the index of a column. Case, and whether words are separated by spaces, minuses or nothing, do not matter.
func column(headers []string, name string) (int, error) {
	bare := strings.NewReplacer(" ", "", "-", "", "_", "").Replace
	i := slices.IndexFunc(headers, func(h string) bool { return strings.EqualFold(bare(h), bare(name)) })
	if i < 0 {
		return 0, errs.New(errs.InvalidArgument, "there is no column %q", name).WithHint("columns: %s", strings.ToLower(strings.Join(headers, ", ")))
	}
	return i, nil
}

// choose returns the rows that the filters keep, in the order that was asked for.
func (c *Console) choose(headers []string, rows [][]string) ([][]string, error) {
	for _, f := range c.filters {
		i, err := column(headers, f.column)
		if err != nil {
			return nil, err
		}
		rows = slices.DeleteFunc(slices.Clone(rows), func(r []string) bool { return !f.holds(stripped(r[i])) })
	}
	if c.sort == "" {
		return rows, nil
	}
	name, descending := strings.CutPrefix(c.sort, "-")
	i, err := column(headers, name)
	if err != nil {
		return nil, err
	}
	rows = slices.Clone(rows)
	slices.SortStableFunc(rows, func(a, b []string) int {
		if descending {
			a, b = b, a
		}
		return compare(stripped(a[i]), stripped(b[i]))
	})
	return rows, nil
}

// compare compares cells as quantities if both begin with a number, else as text.
func compare(a, b string) int {
	x, okX := quantity(a)
	y, okY := quantity(b)
	if okX && okY {
		return cmp.Or(cmp.Compare(x, y), strings.Compare(a, b))
	}
	return strings.Compare(strings.ToLower(a), strings.ToLower(b))
}

// painted matches the colours of a cell.
var painted = regexp.MustCompile("\x1b\\[[0-9;]*m")

// units are those of ages and sizes in tables, in seconds and bytes.
var units = map[string]float64{
	"": 1, "%": 1, "ms": 1e-3, "s": 1, "m": 60, "h": 3600, "d": 24 * 3600,
	"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40, "PiB": 1 << 50,
}

// quantity returns the value of a cell that is a number with a unit, or without.
func quantity(cell string) (float64, bool) {
	n := strings.IndexFunc(cell, func(r rune) bool { return (r < '0' || r > '9') && r != '.' })
	if n < 0 {
		n = len(cell)
	}
	v, err := strconv.ParseFloat(cell[:n], 64)
	factor, known := units[strings.TrimLeft(cell[n:], " ")]
	return v * factor, err == nil && known
}

// stripped returns a cell without its colours.
func stripped(cell string) string { return painted.ReplaceAllString(cell, "") }
