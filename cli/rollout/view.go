// Package rollout shows a deployment while it runs, and its outcome: drawn on a
// terminal, line by line in a pipe, one JSON document per line for programs. The
// server runs the deployment, whether a client watches it or not.
package rollout

import (
	"fmt"
	"time"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/pkg/schema"
)

// Upload is the progress of the upload of the source.
type Upload struct {
	Files   int   `json:"files"`   // size of the source
	Missing int   `json:"missing"` // contents that the server lacks
	Bytes   int64 `json:"bytes"`   // bytes of the missing contents
	Sent    int64 `json:"sent"`
	Done    bool  `json:"done"`
}

// View shows the events of a deployment. It is for one goroutine.
type View interface {
	// Message shows a remark.
	Message(text string)
	Upload(u Upload)
	// Deployment shows the newest state.
	Deployment(d *app.Deployment)
	Build(e *app.BuildEvent)
	// Log shows a line of output of the new version while it starts.
	Log(l *sandbox.LogLine)
	// Tick is called a few times per second, for spinners and times.
	Tick()
	// Close removes the drawing of the current state from the screen.
	Close()
}

// TickInterval is how often Tick should be called.
const TickInterval = 100 * time.Millisecond

// New returns the view that suits the console; now is the clock.
func New(c *console.Console, now func() time.Time) View {
	switch {
	case c.JSON:
		return &jsonView{c: c}
	case c.Quiet:
		return quietView{}
	case c.Terminal:
		return &richView{c: c, now: now, live: c.Live()}
	}
	return &plainView{c: c, now: now}
}

// NewLines returns the view that prints lines, on a terminal too.
func NewLines(c *console.Console, now func() time.Time) View {
	if c.JSON {
		return &jsonView{c: c}
	}
	return &plainView{c: c, now: now}
}

type quietView struct{}

func (quietView) Message(string)             {}
func (quietView) Upload(Upload)              {}
func (quietView) Deployment(*app.Deployment) {}
func (quietView) Build(*app.BuildEvent)      {}
func (quietView) Log(*sandbox.LogLine)       {}
func (quietView) Tick()                      {}
func (quietView) Close()                     {}

// jsonView prints {"event": ..., ...} per line.
type jsonView struct{ c *console.Console }

func (v *jsonView) Message(text string) {
	v.print(map[string]any{"event": "message", "text": text})
}

func (v *jsonView) Upload(u Upload) {
	v.print(map[string]any{"event": "upload", "upload": u})
}

func (v *jsonView) Deployment(d *app.Deployment) {
	v.print(map[string]any{"event": "deployment", "deployment": d})
}

func (v *jsonView) Build(e *app.BuildEvent) {
	v.print(map[string]any{"event": "build", "build": e})
}

func (v *jsonView) Log(l *sandbox.LogLine) {
	v.print(map[string]any{"event": "log", "log": l})
}

func (v *jsonView) print(x any) {
	_ = v.c.PrintJSONLine(x) // the deployment continues without a reader
}

func (*jsonView) Tick()  {}
func (*jsonView) Close() {}

func (u Upload) String() string {
	if u.Missing == 0 {
		return fmt.Sprintf("the server has all %s already", Files(u.Files))
	}
	return fmt.Sprintf("%s of %d (%s)", Files(u.Missing), u.Files, schema.CellBytes(u.Bytes))
}

// Files is a number of files in words.
func Files(n int) string {
	if n == 1 {
		return "1 file"
	}
	return fmt.Sprintf("%d files", n)
}
