package rollout

import (
	"bytes"
	"testing"
	"time"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/cli/console"
)

// TestPlainNamesALongStep: without a terminal, a step of a build that runs for long
// without a line is named every half minute, with its time so far.
func TestPlainNamesALongStep(t *testing.T) {
	var out bytes.Buffer
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	v := New(&console.Console{Out: &out}, func() time.Time { return now })
	event := func(kind string, step int64, name string) {
		v.Build(&app.BuildEvent{Kind: kind, Step: &step, Name: name, Took: new(time.Duration)})
	}
	pass := func(d time.Duration) {
		for end := now.Add(d); now.Before(end); now = now.Add(time.Second) {
			v.Tick()
		}
	}
	pass(time.Minute) // nothing runs
	event("started", 1, "making base image python 3.11")
	event("done", 1, "")
	event("started", 2, "python: installing")
	pass(70 * time.Second)
	event("done", 2, "")
	pass(time.Minute)
	const want = `#1 making base image python 3.11
#1 done in 0ms
#2 python: installing
#2 runs for 30.0s so far
#2 runs for 1m00s so far
#2 done in 0ms
`
	if out.String() != want {
		t.Errorf("%s", out.String())
	}
}
