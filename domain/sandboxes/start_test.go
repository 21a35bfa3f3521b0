package sandboxes

import (
	"slices"
	"testing"
	"time"

	"miren.dev/runtime/api/sandbox"
)

// A sandbox with a start command runs, for those that wait for it, when that is
// ready; its forks do not start it again.
func TestStartCommandOfATemplate(t *testing.T) {
	v := sandbox.NewTemplateVersion()
	v.Spec.Start, v.Spec.Ready = []string{"server"}, &sandbox.Probe{Port: 80}
	sb := sandbox.NewSandbox()
	sb.Spec.Template = OfVersion(v, "image")
	if tpl := sb.Spec.Template; !slices.Equal(tpl.Start, v.Spec.Start) || tpl.Probe == nil || tpl.Probe.Port != 80 || tpl.Probe == v.Spec.Ready {
		t.Errorf("made of %+v", tpl)
	}
	sb.Status.Phase = sandbox.SandboxPhaseRunning
	if reached(sb, sandbox.WaitUntilRunning) {
		t.Error("it runs before its start command is ready")
	}
	now := time.Now()
	sb.Status.ReadyAt = &now
	if !reached(sb, sandbox.WaitUntilRunning) {
		t.Error("it does not run although its start command was ready")
	}
	snap := sandbox.NewSnapshot()
	snap.Spec.Template = sb.Spec.Template
	if fork := forkOf(snap, &ForkRequest{}); fork.Spec.Template.Start != nil || fork.Spec.Template.Probe != nil {
		t.Errorf("a fork is made of %+v", fork.Spec.Template)
	}
}
