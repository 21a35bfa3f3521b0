package runner

import (
	"context"
	"testing"

	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/domain/sandboxes"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/testsupport/wait"
)

// TestLastOutputOfADeletedSandbox: a runner keeps it until the server has copied it, also when its process or the server ended
// meanwhile.
func TestLastOutputOfADeletedSandbox(t *testing.T) {
	e := newEnv(t)
	type asked struct {
		node id.Node
		sid  id.Sandbox
	}
	calls, answers := make(chan asked), make(chan error)
	e.finish = func(_ context.Context, node id.Node, sid id.Sandbox) error {
		select {
		case calls <- asked{node, sid}:
			return <-answers
		case <-t.Context().Done():
			return t.Context().Err()
		}
	}
	m := e.join("edge")
	sb := m.sandbox(func(sb *sandbox.Sandbox) { sb.Spec.Template.Command = []string{"/bin/guest", "sleep"} })
	wait.For(t, "the runner is connected", func() bool { return e.hub.Connected(m.node) })
	e.must(entity.Delete(t.Context(), e.store, sb))
	output := func() (text string, err error) {
		err = e.hub.Node(m.node).Logs(t.Context(), sb.GetID(), sandboxes.LogQuery{}, func(l sandboxes.LogLine) error { text += l.Text + " "; return nil })
		return text, err
	}
	for round := range 3 {
		if a := wait.Receive(t, "the runner asks", calls); a.node != m.node || a.sid != sb.GetID() {
			t.Errorf("%+v", a)
		}
		if text, err := output(); err != nil || text != "sleeping told to stop " {
			t.Errorf("round %d: the runner has %q, %v", round, text, err)
		}
		switch round {
		case 0:
			answers <- errs.New(errs.Unavailable, "not all was sent")
		case 1: // the runner is killed while it waits
			m.stop()
			answers <- nil
			m.start()
			wait.For(t, "the runner is connected", func() bool { return e.hub.Connected(m.node) })
		case 2:
			answers <- nil
		}
	}
	wait.For(t, "the runner has deleted it", func() bool {
		_, err := output()
		return errs.Is(err, errs.NotFound)
	})
}
