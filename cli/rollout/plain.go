package rollout

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/cli/console"
)

// plainView prints a line for every change.
type plainView struct {
	c     *console.Console
	now   func() time.Time
	lines app.Lines
	begun bool // the upload has started
}

func (v *plainView) printf(format string, args ...any) {
	v.c.Printf("%s\n", console.Cut(fmt.Sprintf(format, args...), 0))
}

func (v *plainView) Message(text string) {
	for line := range strings.SplitSeq(text, "\n") {
		v.printf("%s", line)
	}
}

func (v *plainView) Upload(u Upload) {
	switch {
	case u.Missing == 0:
		if u.Done {
			v.printf("source: %s", u)
		}
	case u.Done:
		v.printf("source: uploaded %s", u)
	case !v.begun:
		v.printf("source: uploading %s", u)
	}
	v.begun = true
}

func (v *plainView) Deployment(d *app.Deployment) {
	for _, l := range v.lines.Deployment(d, v.now()) {
		v.printf("%s", l)
	}
}

func (v *plainView) Build(e *app.BuildEvent) {
	if l := e.Line(); l != "" {
		v.printf("%s", l)
	}
}

func (v *plainView) Log(l *sandbox.LogLine) { v.printf("%s | %s", cmp.Or(l.Service, "app"), l.Text) }

func (*plainView) Tick()  {}
func (*plainView) Close() {}
