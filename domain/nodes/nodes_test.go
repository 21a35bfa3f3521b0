package nodes

import (
	"testing"

	"miren.dev/runtime/api"
	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/testsupport/pgtest"
)

func TestCordonFindsANodeByNameAndID(t *testing.T) {
	s := &Service{Store: pgtest.Store(t, api.Kinds()...)}
	n := core.NewNode()
	n.Name, n.Spec.Arch, n.Spec.CPUMillis, n.Spec.MemoryBytes = "n", "amd64", 1000, 1<<30
	if err := entity.Create(t.Context(), s.Store, n); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"n", string(n.ID)} {
		got, err := s.Cordon(t.Context(), name)
		if err != nil || !got.Spec.Cordoned {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
		got, err = s.Uncordon(t.Context(), name)
		if err != nil || got.Spec.Cordoned {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	if _, err := s.Cordon(t.Context(), "none"); !errs.Is(err, errs.NotFound) {
		t.Errorf("none: %v", err)
	}
}

// TestDrain: every sandbox on the node is told to stop with reason node, one that
// has ended or stops already stays as it is, and those of other nodes do.
func TestDrain(t *testing.T) {
	s := &Service{Store: pgtest.Store(t, api.Kinds()...)}
	p := core.NewProject()
	p.Name = "default"
	if err := entity.Create(t.Context(), s.Store, p); err != nil {
		t.Fatal(err)
	}
	var nodes []*core.Node
	for _, name := range []string{"n", "other"} {
		n := core.NewNode()
		n.Name, n.Spec.Arch, n.Spec.CPUMillis, n.Spec.MemoryBytes = name, "amd64", 1000, 1<<30
		if err := entity.Create(t.Context(), s.Store, n); err != nil {
			t.Fatal(err)
		}
		nodes = append(nodes, n)
	}
	place := func(n *core.Node, change func(*sandbox.Sandbox)) *sandbox.Sandbox {
		sb := sandbox.NewSandbox()
		sb.Project, sb.Spec.Node, sb.Spec.Template.Image, sb.Status.Phase = p.ID, n.GetID(), "img", sandbox.SandboxPhaseRunning
		change(sb)
		if err := entity.Create(t.Context(), s.Store, sb); err != nil {
			t.Fatal(err)
		}
		return sb
	}
	runs := place(nodes[0], func(*sandbox.Sandbox) {})
	stops := place(nodes[0], func(sb *sandbox.Sandbox) {
		sb.Spec.Desired, sb.Spec.StopReason = sandbox.DesiredStateStopped, sandbox.EndReasonUser
	})
	ended := place(nodes[0], func(sb *sandbox.Sandbox) { sb.Status.Phase = sandbox.SandboxPhaseStopped })
	elsewhere := place(nodes[1], func(*sandbox.Sandbox) {})
	for range 2 {
		n, left, err := s.Drain(t.Context(), "n")
		if err != nil || !n.Spec.Cordoned || left != 2 {
			t.Fatalf("%+v, %d, %v", n, left, err)
		}
	}
	for sb, want := range map[*sandbox.Sandbox]sandbox.EndReason{runs: sandbox.EndReasonNode, stops: sandbox.EndReasonUser, ended: "", elsewhere: ""} {
		got, err := entity.Get[sandbox.Sandbox](t.Context(), s.Store, sb.GetID())
		if err != nil || got.Spec.StopReason != want || (got.Spec.Desired == sandbox.DesiredStateStopped) != (want != "") {
			t.Errorf("%+v, %v; want reason %q", got.Spec, err, want)
		}
	}
}
