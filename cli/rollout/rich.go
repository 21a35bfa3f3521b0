package rollout

import (
	"fmt"
	"strings"
	"time"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/pkg/opt"
	"miren.dev/runtime/pkg/schema"
)

// How much of a running build is drawn, in lines.
const (
	shownVertices = 6
	shownLines    = 4
)

// timeWidth is the number of columns for the mark and the time of a vertex.
const timeWidth = 16

// richView redraws the running steps with their details; steps that have ended
// are printed above them, once.
type richView struct {
	c     *console.Console
	now   func() time.Time
	live  *console.Live
	frame int

	upload   *Upload
	dep      *app.Deployment
	printed  int // steps that have been printed
	vertices []*vertex
	output   []string // last lines of the new version during its start
}

// vertex is one step of a build.
type vertex struct {
	*app.BuildEvent // time of its start
	end             string
	took            time.Duration
	progress        string
	lines           []string // the last ones
}

func (v *richView) Message(text string) {
	for line := range strings.SplitSeq(text, "\n") {
		v.live.Println(console.Cut(line, 0))
	}
	v.draw()
}

func (v *richView) Upload(u Upload) {
	v.upload = &u
	if u.Done {
		v.upload = nil
		v.live.Println(v.c.Paint(console.Green, "✓") + " source  " + v.c.Paint(console.Dim, u.String()))
	}
	v.draw()
}

func (v *richView) Deployment(d *app.Deployment) {
	v.dep = d
	for v.printed < len(d.Status.Steps) {
		s := &d.Status.Steps[v.printed]
		if s.State == app.StepStatePending || s.State == app.StepStateRunning {
			break
		}
		v.printed++
		if s.State == app.StepStateSkipped {
			continue
		}
		if s.Name == "build" {
			v.buildEnded(s)
		}
		v.live.Println(v.stepLine(s))
	}
	v.draw()
}

// buildEnded prints the vertices of the build.
func (v *richView) buildEnded(s *app.Step) {
	for _, x := range v.vertices {
		if x.end == "" { // its end has not arrived, or the build was canceled
			if x.end = "done"; s.State != app.StepStateDone {
				x.end = "canceled"
			}
		}
		if !opt.Value(x.Internal) || x.end == "failed" {
			v.live.Println(v.vertexLine(x))
		}
	}
	if s.State == app.StepStateDone {
		v.vertices = nil
	}
}

func (v *richView) Build(e *app.BuildEvent) {
	if e.Kind == "warning" {
		v.live.Println(v.c.Paint(console.Yellow, "!") + " " + console.Cut(e.Text, 0))
		v.draw()
		return
	}
	x := v.vertex(e)
	switch e.Kind {
	case "log":
		x.lines = append(x.lines, e.Text)
		if len(x.lines) > shownLines {
			x.lines = x.lines[len(x.lines)-shownLines:]
		}
	case "progress":
		x.progress = e.Text
		if total := opt.Value(e.Total); total > 0 {
			x.progress = fmt.Sprintf("%s %s of %s", e.Text, schema.CellBytes(opt.Value(e.Current)), schema.CellBytes(total))
		}
	case "cached", "done", "failed", "canceled":
		x.end, x.took, x.progress = e.Kind, opt.Value(e.Took), ""
	}
}

func (v *richView) vertex(e *app.BuildEvent) *vertex {
	for _, x := range v.vertices {
		if opt.Value(x.Step) == opt.Value(e.Step) {
			return x
		}
	}
	x := &vertex{BuildEvent: e}
	v.vertices = append(v.vertices, x)
	return x
}

func (v *richView) Log(l *sandbox.LogLine) {
	v.output = append(v.output, l.Text)
	if len(v.output) > shownLines {
		v.output = v.output[1:]
	}
}

func (v *richView) Tick() {
	v.frame++
	v.draw()
}

func (v *richView) Close() { v.live.Draw(nil) }

func (v *richView) draw() {
	var lines []string
	if v.upload != nil {
		lines = append(lines, fmt.Sprintf("%s source  %s", v.spinner(), v.bar()))
	}
	if v.dep != nil {
		for i := v.printed; i < len(v.dep.Status.Steps); i++ {
			s := &v.dep.Status.Steps[i]
			if s.State == app.StepStateSkipped {
				continue
			}
			lines = append(lines, console.Fold(v.stepLine(s), v.c.Width(), "    ")...)
			if s.Name == "build" && s.State == app.StepStateRunning {
				lines = append(lines, v.buildLines()...)
			}
			if s.Name == "start" && s.State == app.StepStateRunning {
				for _, l := range v.output {
					lines = append(lines, v.c.Paint(console.Dim, "    │ "+console.Cut(l, 0)))
				}
			}
		}
	}
	v.live.Draw(lines)
}

func (v *richView) spinner() string { return v.c.Paint(console.Cyan, console.Spinner(v.frame)) }

func (v *richView) bar() string {
	const width = 24
	u := v.upload
	if u.Bytes == 0 {
		return u.String()
	}
	full := int(min(int64(width), u.Sent*width/u.Bytes))
	return strings.Repeat("█", full) + strings.Repeat("░", width-full) + " " + u.String()
}

func (v *richView) stepLine(s *app.Step) string {
	mark, message := v.c.Paint(console.Dim, "·"), s.Message
	switch s.State {
	case app.StepStateRunning:
		mark = v.spinner()
	case app.StepStateDone:
		mark = v.c.Paint(console.Green, "✓")
	case app.StepStateFailed:
		mark = v.c.Paint(console.Red, "✗")
	case app.StepStatePending:
		return mark + " " + v.c.Paint(console.Dim, s.Name)
	}
	line := fmt.Sprintf("%s %-7s", mark, s.Name)
	if d := s.Took(v.now()); d > 0 {
		line += " " + v.c.Paint(console.Dim, fmt.Sprintf("%7s", app.ShortDuration(d)))
	}
	if message != "" {
		line += "  " + message
	}
	return line
}

func (v *richView) vertexLine(x *vertex) string {
	name := x.Name
	if w := v.c.Width(); w > timeWidth {
		name = console.Cut(name, w-timeWidth) // the time follows
	}
	switch x.end {
	case "":
		d := v.now().Sub(x.At)
		if x.progress != "" {
			name += "  " + x.progress
		}
		return fmt.Sprintf("    %s %s %s", v.spinner(), name, v.c.Paint(console.Dim, app.ShortDuration(d)))
	case "cached":
		return fmt.Sprintf("    %s %s", v.c.Paint(console.Green, "✓"), v.c.Paint(console.Dim, name+" cached"))
	case "done":
		line := fmt.Sprintf("    %s %s", v.c.Paint(console.Green, "✓"), name)
		if x.took > 0 {
			line += " " + v.c.Paint(console.Dim, app.ShortDuration(x.took))
		}
		return line
	case "failed":
		return fmt.Sprintf("    %s %s %s", v.c.Paint(console.Red, "✗"), name, v.c.Paint(console.Dim, app.ShortDuration(x.took)))
	}
	return fmt.Sprintf("    %s %s", v.c.Paint(console.Dim, "·"), v.c.Paint(console.Dim, name+" canceled"))
}

// buildLines returns the newest vertices and the output of the running ones.
func (v *richView) buildLines() []string {
	var shown []*vertex
	for _, x := range v.vertices {
		if !opt.Value(x.Internal) {
			shown = append(shown, x)
		}
	}
	var lines []string
	if hidden := len(shown) - shownVertices; hidden > 0 {
		shown = shown[hidden:]
		lines = append(lines, v.c.Paint(console.Dim, fmt.Sprintf("    … %d more", hidden)))
	}
	for _, x := range shown {
		lines = append(lines, v.vertexLine(x))
		if x.end == "" {
			for _, l := range x.lines {
				lines = append(lines, v.c.Paint(console.Dim, "      │ "+console.Cut(l, 0)))
			}
		}
	}
	return lines
}
