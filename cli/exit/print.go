package exit

import (
	"errors"
	"strings"

	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/pkg/errs"
)

// Document is an error as --json prints it.
type Document struct {
	Error struct {
		Class   errs.Class        `json:"class"`
		Message string            `json:"message"`
		Hint    string            `json:"hint,omitempty"`
		Details map[string]string `json:"details,omitempty"`
	} `json:"error"`
}

// Print prints err to the error stream: a line and a hint, or with --json one
// line of JSON.
func Print(c *console.Console, err error) {
	if err == nil || Silent(err) {
		return
	}
	if c.JSON {
		var d Document
		d.Error.Class, d.Error.Message, d.Error.Hint = errs.ClassOf(err), err.Error(), errs.HintOf(err)
		var e *errs.Error
		if errors.As(err, &e) {
			d.Error.Details = e.Details
		}
		out := &console.Console{Out: c.Err} // without the expression of --jq
		_ = out.PrintJSONLine(d)            // there is no other stream to report to
		return
	}
	out := *c
	out.Quiet = false
	out.Notef("%s %s\n", c.Paint(console.Red, "error:"), indent(err.Error()))
	if h := errs.HintOf(err); h != "" {
		out.Notef("%s %s\n", c.Paint(console.Yellow, "hint:"), indent(h))
	}
}

// indent indents the lines after the first.
func indent(s string) string {
	lines := strings.Split(strings.TrimRight(s, "\n"), "\n")
	for i := range lines {
		lines[i] = console.Cut(lines[i], 0)
	}
	return strings.Join(lines, "\n  ")
}
