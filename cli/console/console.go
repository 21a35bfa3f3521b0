// Package console is the input and output of commands: tables and colours on a
// terminal, plain lines in a pipe, JSON for programs.
package console

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/itchyny/gojq"
	"golang.org/x/term"

	"miren.dev/runtime/pkg/errs"
)

// Console is the streams of a command, and the form of its output.
type Console struct {
	In   io.Reader
	Out  io.Writer
	Err  io.Writer
	JSON bool // print JSON to Out
	// Terminal reports whether Out is a terminal: progress may move the cursor.
	// Color reports whether to print colours: on a terminal, unless NO_COLOR is
	// set.
	Terminal, Color bool
	// InTerminal reports whether In is a terminal: commands may ask questions.
	InTerminal bool
	Quiet      bool // no progress and no remarks
	// Size returns the terminal's columns and lines; nil: Out's size.
	Size func() (columns, lines int)

	query    *gojq.Code // of SetQuery
	filters  []filter   // of AddFilter
	sort     string     // of SortBy
	tableErr error
}

// Std returns the console of this process.
func Std() *Console {
	tty := term.IsTerminal(int(os.Stdout.Fd())) && escapes(os.Stdout)
	return &Console{
		In: os.Stdin, Out: os.Stdout, Err: os.Stderr, Terminal: tty, Color: tty && os.Getenv("NO_COLOR") == "",
		InTerminal: term.IsTerminal(int(os.Stdin.Fd())),
	}
}

// Width returns the columns of the terminal, 0 if there is none.
func (c *Console) Width() int {
	w, _ := c.size()
	return w
}

// Height returns the lines of the terminal, 0 if there is none.
func (c *Console) Height() int {
	_, h := c.size()
	return h
}

func (c *Console) size() (columns, lines int) {
	if !c.Terminal {
		return 0, 0
	}
	if c.Size != nil {
		return c.Size()
	}
	f, ok := c.Out.(*os.File)
	if !ok {
		return 0, 0
	}
	w, h, err := term.GetSize(int(f.Fd()))
	if err != nil {
		return 0, 0
	}
	return w, h
}

// Style is a colour or weight.
type Style string

// Styles.
const (
	Bold   Style = "1"
	Dim    Style = "2"
	Red    Style = "31"
	Green  Style = "32"
	Yellow Style = "33"
	Cyan   Style = "36"
)

// Paint returns s in a style, or unchanged without colours.
func (c *Console) Paint(st Style, s string) string {
	if !c.Color || s == "" {
		return s
	}
	return "\x1b[" + string(st) + "m" + s + "\x1b[0m"
}

// Printf prints to Out, for people; with --json it prints nothing.
func (c *Console) Printf(format string, args ...any) {
	if !c.JSON {
		fmt.Fprintf(c.Out, format, args...)
	}
}

// Notef prints a remark to Err, for people; with --json or --quiet it prints nothing.
func (c *Console) Notef(format string, args ...any) {
	if !c.JSON && !c.Quiet {
		fmt.Fprintf(c.Err, format, args...)
	}
}

// PrintJSON prints v as indented JSON, or what the query makes of it.
func (c *Console) PrintJSON(v any) error {
	if c.query != nil {
		return c.printQuery(v)
	}
	e := json.NewEncoder(c.Out)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// PrintJSONLine prints v as one line of JSON, for streams, or what the query makes
// of it.
func (c *Console) PrintJSONLine(v any) error {
	if c.query != nil {
		return c.printQuery(v)
	}
	e := json.NewEncoder(c.Out)
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// Table prints rows under headers: aligned on a terminal, tab-separated
// without headers in a pipe. See AddFilter and SortBy.
func (c *Console) Table(headers []string, rows [][]string) {
	if rows, c.tableErr = c.choose(headers, rows); c.tableErr != nil {
		return
	}
	if !c.Terminal {
		for _, r := range rows {
			cells := make([]string, len(r))
			for i, s := range r {
				cells[i] = strings.Map(plain, s)
			}
			fmt.Fprintln(c.Out, strings.Join(cells, "\t"))
		}
		return
	}
	width := make([]int, len(headers))
	for i, h := range headers {
		width[i] = Columns(h)
	}
	for _, r := range rows {
		for i := range r {
			width[i] = max(width[i], Columns(r[i]))
		}
	}
	total := c.Width()
	line := func(cells []string, paint func(string) string) {
		var b strings.Builder
		for i, s := range cells {
			b.WriteString(paint(s))
			if i < len(cells)-1 {
				b.WriteString(strings.Repeat(" ", width[i]-Columns(s)+2))
			}
		}
		fmt.Fprintln(c.Out, Cut(strings.TrimRight(b.String(), " "), total))
	}
	line(headers, func(s string) string { return c.Paint(Dim, s) })
	for _, r := range rows {
		line(r, func(s string) string { return s })
	}
}

// plain replaces control characters, which would break lines and columns.
func plain(r rune) rune {
	if r < ' ' || r == 0x7f {
		return ' '
	}
	return r
}

// Confirm asks a question and reports whether the answer is yes. Without a
// terminal it returns an error that names the flag --yes.
func (c *Console) Confirm(question string) (bool, error) {
	if !c.InTerminal || c.JSON {
		return false, errs.New(errs.FailedPrecondition, "%s needs a confirmation, and standard input is no terminal", question).
			WithHint("give --yes")
	}
	fmt.Fprintf(c.Err, "%s? [y/N] ", question)
	line, err := bufio.NewReader(io.LimitReader(c.In, 100)).ReadString('\n')
	if err != nil && err != io.EOF {
		return false, err
	}
	switch strings.ToLower(strings.TrimSpace(line)) {
	case "y", "yes":
		return true, nil
	}
	return false, nil
}

// maxAnswer bounds an answer, in bytes.
const maxAnswer = 1000

// Ask asks for a text, and again until check accepts it. An empty line, or the end of
// the input, answers with the default.
func (c *Console) Ask(question, byDefault string, check func(string) error) (string, error) {
	for {
		if byDefault == "" {
			fmt.Fprintf(c.Err, "%s: ", question)
		} else {
			fmt.Fprintf(c.Err, "%s [%s]: ", question, byDefault)
		}
		// Byte by byte: the next question needs the lines after this one.
		var line []byte
		one := make([]byte, 1)
		var end error
		for end == nil && len(line) < maxAnswer {
			var n int
			if n, end = c.In.Read(one); n == 1 {
				if one[0] == '\n' {
					break
				}
				line = append(line, one[0])
			}
		}
		if end != nil && end != io.EOF {
			return "", end
		}
		answer := strings.TrimSpace(string(line))
		if answer == "" {
			answer = byDefault
		}
		err := check(answer)
		if err == nil || end == io.EOF {
			return answer, err
		}
		fmt.Fprintln(c.Err, err)
	}
}

// Clear empties the screen, for views that are printed again.
func (c *Console) Clear() {
	if c.Terminal {
		fmt.Fprint(c.Out, "\x1b[H\x1b[2J")
	}
}
