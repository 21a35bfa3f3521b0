// Package logview prints the output of sandboxes as it arrives. After an
// interruption of the server it resumes at the last printed line.
package logview

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"time"

	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// retryInterval is the pause between attempts to reach the server again.
const retryInterval = time.Second

// lateness is how much later than its time a line may come.
const lateness = 5 * time.Minute

// View prints lines.
type View struct {
	Env        *command.Env
	Timestamps bool
	// Prefix tells lines of several sandboxes apart.
	Prefix bool
	// App, if set, says whose lines they are: they are shown by their structure.
	App string

	began time.Time
	last  time.Time            // of the latest line
	seen  map[id.Sandbox]int64 // position after the last line that was printed
}

// Print prints the lines that req selects. With req.Follow it prints new lines
// until the sandbox has ended or ctx ends.
func (v *View) Print(ctx context.Context, req *sandbox.LogsRequest) error {
	c, err := v.Env.Connect(ctx)
	if err != nil {
		return err
	}
	client := sandbox.NewSandboxesClient(c)
	v.seen, v.began = map[id.Sandbox]int64{}, time.Now()
	follow := req.Follow != nil && *req.Follow
	again := false
	for {
		err := v.once(ctx, client, req, again)
		if !follow || !errs.Is(err, errs.Unavailable) || ctx.Err() != nil {
			return err
		}
		v.Env.Notef("the server cannot be reached; output resumes when it answers again\n")
		again = true
		// Every line from now on is new, except those printed already.
		r := *req
		r.Tail, r.Limit = nil, nil
		if from := v.last.Add(-lateness); !v.last.IsZero() && r.Sandbox == "" && (r.Since == nil || r.Since.Before(from)) {
			r.Since = &from
		}
		if off, ok := v.seen[r.Sandbox]; ok && r.Sandbox != "" {
			r.Offset = &off
		}
		req = &r
		select {
		case <-time.After(retryInterval):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (v *View) once(ctx context.Context, client sandbox.SandboxesClient, req *sandbox.LogsRequest, again bool) error {
	s, err := client.Logs(ctx, req)
	if err != nil {
		return err
	}
	defer s.Close()
	for {
		batch, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		for i := range batch.Lines {
			l := &batch.Lines[i]
			if again && v.old(l) {
				continue
			}
			if l.Offset != nil {
				v.seen[l.Sandbox] = *l.Offset
			}
			if l.At.After(v.last) {
				v.last = l.At
			}
			if err := v.line(l); err != nil {
				return err
			}
		}
	}
}

// old reports whether a repeated line was printed, or left out because it is
// older than the requested tail.
func (v *View) old(l *sandbox.LogLine) bool {
	seen, ok := v.seen[l.Sandbox]
	if !ok {
		return l.At.Before(v.began)
	}
	return l.Offset != nil && *l.Offset <= seen
}

func (v *View) line(l *sandbox.LogLine) error {
	c := v.Env.Console
	if c.JSON && v.App != "" {
		return c.PrintJSONLine(recordOf(v.App, l))
	}
	if c.JSON {
		return c.PrintJSONLine(l)
	}
	if l.Missed != nil && *l.Missed > 0 {
		c.Notef("%s: %s of older lines are gone; a log keeps its end only\n", Name(l), schema.CellBytes(*l.Missed))
	}
	text := l.Text
	if c.Terminal {
		if v.App != "" {
			text = v.structured(text)
		}
		text = console.Cut(text, 0) // colours stay, other control characters do not
	}
	prefix := ""
	if v.Timestamps {
		prefix += c.Paint(console.Dim, l.At.Local().Format("2006-01-02T15:04:05.000Z07:00")) + " "
	}
	if v.Prefix {
		prefix += c.Paint(color(l.Sandbox), Name(l)) + " "
	}
	_, err := fmt.Fprintln(c.Out, prefix+text)
	return err
}

// Name returns the origin of a line: service, version and sandbox.
func Name(l *sandbox.LogLine) string {
	s := cmp.Or(l.Service, "sandbox")
	if l.Version != nil && *l.Version > 0 {
		s += fmt.Sprintf(".v%d", *l.Version)
	}
	return s + "[" + command.ShortID(l.Sandbox) + "]"
}

// color returns the color of a sandbox, the same each time.
func color(sb id.Sandbox) console.Style {
	h := fnv.New32a()
	_, _ = io.WriteString(h, string(sb)) // never fails
	colors := []console.Style{console.Cyan, console.Green, console.Yellow, "35", "34", "36;1", "32;1", "33;1"}
	return colors[h.Sum32()%uint32(len(colors))]
}
