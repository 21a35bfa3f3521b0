package rollout

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/pkg/opt"
)

// plainView prints a line for every change.
type plainView struct {
	c     *console.Console
	now   func() time.Time
	lines app.Lines
	begun bool // the upload has started

	said    time.Time     // when the last line was printed
	running []runningStep // of the build, the oldest first
}

// runningStep is a step of a build that has not ended.
type runningStep struct {
	number int64
	since  time.Time
}

// quietTime is after how long without a line a running step of the build is named.
const quietTime = 30 * time.Second

func (v *plainView) printf(format string, args ...any) {
	v.said = v.now()
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
	number := opt.Value(e.Step)
	switch e.Kind {
	case "started":
		if !opt.Value(e.Internal) {
			v.running = append(v.running, runningStep{number, v.now()})
		}
	case "cached", "done", "failed", "canceled":
		v.running = slices.DeleteFunc(v.running, func(s runningStep) bool { return s.number == number })
	}
}

func (v *plainView) Log(l *sandbox.LogLine) { v.printf("%s | %s", cmp.Or(l.Service, "app"), l.Text) }

// Tick names the step that runs the longest when no line was printed for quietTime.
func (v *plainView) Tick() {
	if now := v.now(); len(v.running) > 0 && now.Sub(v.said) >= quietTime {
		v.printf("#%d runs for %s so far", v.running[0].number, app.ShortDuration(now.Sub(v.running[0].since)))
	}
}

func (*plainView) Close() {}
