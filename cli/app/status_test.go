package app

import (
	"slices"
	"testing"
	"time"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/pkg/schema"
)

// TestShownSandboxes: what ended is listed only while it says something about the
// active version or the newest deployment.
func TestShownSandboxes(t *testing.T) {
	age := 0
	box := func(name, service string, version id.AppVersion, reason sandbox.EndReason) *sandbox.Sandbox {
		s := sandbox.NewSandbox()
		age++
		s.ID, s.CreatedAt = schema.ID(name), time.Unix(int64(age), 0)
		s.Spec.Pool, s.Spec.Service, s.Spec.AppVersion = "pool", service, version
		s.Status.Phase, s.Status.Reason = sandbox.SandboxPhaseRunning, reason
		if reason != "" {
			s.Status.Phase = sandbox.SandboxPhaseStopped
		}
		return s
	}
	command := box("command", "web", "v2", "")
	command.Spec.Pool = ""
	list := []*sandbox.Sandbox{
		command,
		box("earlier-failure", "web", "v1", sandbox.EndReasonExit),
		box("replaced", "web", "v2", sandbox.EndReasonOOM), box("serves", "web", "v2", ""),
		box("worker-fails", "worker", "v2", sandbox.EndReasonExit), box("worker-fails-again", "worker", "v2", sandbox.EndReasonCrash),
		box("drains", "web", "v0", ""), box("drained", "web", "v2", sandbox.EndReasonUser),
		box("new-fails", "web", "v3", sandbox.EndReasonExit), box("new-fails-again", "web", "v3", sandbox.EndReasonExit), box("new-stopped", "web", "v3", sandbox.EndReasonUser),
	}
	shown := func(newest id.AppVersion) (names []string) {
		a, dep := app.NewApp(), app.NewDeployment()
		a.Status.Activate("v2")
		dep.Status.Version = newest
		for _, s := range (&detail{App: a, Last: dep, Sandboxes: list}).shown() {
			names = append(names, string(s.ID))
		}
		return names
	}
	common := []string{"serves", "worker-fails-again", "drains"}
	if got := shown("v2"); !slices.Equal(got, common) {
		t.Errorf("after a deployment that succeeded: %q", got)
	}
	if got, want := shown("v3"), append(common, "new-fails-again"); !slices.Equal(got, want) {
		t.Errorf("after one that failed: %q, want %q", got, want)
	}
}
