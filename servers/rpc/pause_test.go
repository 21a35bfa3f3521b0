package rpcserver_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/domain/sandboxes"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/egress"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/testsupport/wait"
)

func (e *env) pause(sb *sandbox.Sandbox) *sandbox.Sandbox {
	e.Helper()
	resp, err := e.sandboxes.Pause(e.ctx(), &sandbox.PauseRequest{Sandbox: sb.GetID(), Wait: ptr(true)})
	e.must(err)
	got, err := entity.Decode[sandbox.Sandbox](&resp.Sandbox)
	e.must(err)
	return got
}

func (e *env) snapshotNames() []string {
	e.Helper()
	list, err := e.machine.Driver().ListSnapshots(e.ctx())
	e.must(err)
	var names []string
	for _, s := range list {
		names = append(names, s.ID)
	}
	slices.Sort(names)
	return names
}

func TestPauseAndResume(t *testing.T) {
	e := newEnv(t)
	sb := e.run("sleep")
	for range 3 {
		paused := e.pause(sb)
		if cpu, memory := paused.Reserved(); paused.Status.Phase != sandbox.SandboxPhasePaused || paused.Status.Address != "" || paused.Status.Ready || cpu != 0 || memory != 0 {
			t.Fatalf("%+v, reserves %d and %d", paused.Status, cpu, memory)
		}
		if names := e.snapshotNames(); len(names) != 1 || names[0] != paused.Status.Saved {
			t.Fatalf("the node has saved %q, want %s", names, paused.Status.Saved)
		}
		resp, err := e.sandboxes.Resume(e.ctx(), &sandbox.PauseRequest{Sandbox: sb.GetID(), Wait: ptr(true)})
		e.must(err)
		got, err := entity.Decode[sandbox.Sandbox](&resp.Sandbox)
		if err != nil || got.Status.Phase != sandbox.SandboxPhaseRunning || !got.Status.Ready || got.Status.Address == "" || got.Status.Saved != "" {
			t.Fatalf("%+v, %v", got.Status, err)
		}
		wait.For(t, "what was saved is deleted", func() bool { return len(e.snapshotNames()) == 0 })
	}
}

// TestResumeWaitsForRoom: a paused sandbox reserves nothing, so another one may have taken its room.
func TestResumeWaitsForRoom(t *testing.T) {
	e := newEnv(t)
	first := e.run("sleep")
	e.pause(first)
	second := e.run("sleep")
	_, memory := second.Reserved()
	_, err := entity.ModifySpec(e.ctx(), e.store, e.node, func(n *core.Node) error { n.Spec.MemoryBytes = memory; return nil })
	e.must(err)
	_, err = e.sandboxes.Resume(e.ctx(), &sandbox.PauseRequest{Sandbox: first.GetID()})
	e.must(err)
	get := func() *sandbox.Sandbox {
		t.Helper()
		sb, err := entity.Get[sandbox.Sandbox](e.ctx(), e.store, first.GetID())
		e.must(err)
		return sb
	}
	wait.For(t, "it waits for room", func() bool { return strings.Contains(get().Status.Message, "no room") })
	if sb := get(); sb.Status.Phase != sandbox.SandboxPhasePaused || !sandboxes.Homeless(sb) {
		t.Errorf("%+v", sb.Status)
	}
	_, err = e.sandboxes.Stop(e.ctx(), &sandbox.StopRequest{Sandbox: second.GetID(), Wait: ptr(true)})
	e.must(err)
	wait.For(t, "it runs", func() bool {
		sb := get()
		return sb.Status.Phase == sandbox.SandboxPhaseRunning && sb.Status.Message == ""
	})
}

func TestExecWakesAPausedSandbox(t *testing.T) {
	e := newEnv(t)
	sb := e.run("sleep")
	e.pause(sb)
	st, err := e.sandboxes.Exec(e.ctx(), &sandbox.ExecRequest{Sandbox: sb.GetID(), Command: []string{"/bin/guest", "exit", "3"}})
	e.must(err)
	out, err := all(st)
	if err != nil || len(out) == 0 || out[len(out)-1].ExitCode == nil || *out[len(out)-1].ExitCode != 3 {
		t.Errorf("%+v, %v", out, err)
	}
}

func TestEndOfAPausedSandbox(t *testing.T) {
	e := newEnv(t)
	sb := e.run("sleep")
	e.pause(sb)
	resp, err := e.sandboxes.Stop(e.ctx(), &sandbox.StopRequest{Sandbox: sb.GetID(), Wait: ptr(true)})
	e.must(err)
	if got, err := entity.Decode[sandbox.Sandbox](&resp.Sandbox); err != nil || got.Status.Reason != sandbox.EndReasonUser {
		t.Errorf("%+v, %v", got.Status, err)
	}
	wait.For(t, "nothing is left", func() bool { return len(e.snapshotNames()) == 0 && len(e.machine.IDs()) == 0 })
	_, err = e.sandboxes.Resume(e.ctx(), &sandbox.PauseRequest{Sandbox: sb.GetID()})
	e.class("resume", err, errs.FailedPrecondition)
	_, err = e.sandboxes.Pause(e.ctx(), &sandbox.PauseRequest{Sandbox: sb.GetID()})
	e.class("pause", err, errs.FailedPrecondition)
}

// placeForks does the scheduler's part for n forks, and closes what it returns
// when it has placed them.
func (e *env) placeForks(n int) <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		placed := map[string]bool{}
		wait.For(e.T, "the forks", func() bool {
			list, _, err := entity.List[sandbox.Sandbox](e.ctx(), e.store.Store, entity.Query{})
			if err != nil {
				return false
			}
			for _, f := range list {
				if f.Spec.Restore != "" && f.Spec.Node == "" && f.Spec.OnlyNode == e.node {
					f.Spec.Node = e.node
					if entity.UpdateSpec(e.ctx(), e.store.Store, f) == nil {
						placed[string(f.ID)] = true
					}
				}
			}
			return len(placed) == n
		})
	}()
	return done
}

func TestSnapshotAndFork(t *testing.T) {
	e := newEnv(t)
	sb := e.run("sleep")
	resp, err := e.sandboxes.Snapshot(e.ctx(), &sandbox.SnapshotRequest{Sandbox: sb.GetID(), Name: "before"})
	e.must(err)
	snap, err := entity.Decode[sandbox.Snapshot](&resp.Snapshot)
	if err != nil || snap.Name != "before" || snap.Status.Phase != sandbox.SnapshotPhaseReady || snap.Status.Bytes == 0 || snap.Spec.Sandbox != sb.GetID() {
		t.Fatalf("%+v, %v", snap, err)
	}
	placed := e.placeForks(5)
	var ids []string
	for _, req := range []*sandbox.ForkRequest{
		{Snapshot: snap.GetID(), Count: ptr(int64(3)), Env: map[string]string{"A": "1"}, TTL: ptr(time.Hour), IdleTimeout: ptr(time.Minute), OnIdle: sandbox.IdleActionPause},
		{Sandbox: sb.GetID(), Count: ptr(int64(2))},
	} {
		resp, err := e.sandboxes.Fork(e.ctx(), req)
		e.must(err)
		for i := range resp.Sandboxes {
			f, err := entity.Decode[sandbox.Sandbox](&resp.Sandboxes[i])
			e.must(err)
			if f.Status.Phase != sandbox.SandboxPhaseRunning || f.Spec.Restore == "" || slices.Contains(ids, string(f.ID)) {
				t.Errorf("%+v", f)
			}
			if timed := f.Spec.IdleTimeout != nil && *f.Spec.IdleTimeout == time.Minute && f.Spec.OnIdle == sandbox.IdleActionPause; timed != (req.TTL != nil) {
				t.Errorf("idle time-out %v, then %s", f.Spec.IdleTimeout, f.Spec.OnIdle)
			}
			ids = append(ids, string(f.ID))
		}
	}
	<-placed
	if len(ids) != 5 {
		t.Fatalf("%d forks", len(ids))
	}
	if spec, ok := e.machine.Spec(ids[0]); !ok || !slices.Contains(spec.Env, "A=1") || spec.Restore != string(snap.ID) {
		t.Errorf("%+v", spec)
	}
	wait.For(t, "the snapshot of the fork of a sandbox is gone", func() bool { return slices.Equal(e.snapshotNames(), []string{string(snap.ID)}) })
	e.must(e.sandboxes.DeleteSnapshot(e.ctx(), &sandbox.DeleteSnapshotRequest{Snapshot: snap.GetID()}))
	wait.For(t, "the snapshot is gone from the node", func() bool { return len(e.snapshotNames()) == 0 })
	_, err = e.sandboxes.Fork(e.ctx(), &sandbox.ForkRequest{Snapshot: snap.GetID()})
	e.class("a deleted snapshot", err, errs.NotFound)
	_, err = e.sandboxes.Fork(e.ctx(), &sandbox.ForkRequest{})
	e.class("nothing", err, errs.InvalidArgument)
}

func TestExtend(t *testing.T) {
	e := newEnv(t)
	sb := e.run("sleep")
	resp, err := e.sandboxes.Extend(e.ctx(), &sandbox.ExtendRequest{Sandbox: sb.GetID(), TTL: ptr(time.Hour)})
	e.must(err)
	got, err := entity.Decode[sandbox.Sandbox](&resp.Sandbox)
	e.must(err)
	if left := time.Until(got.Status.StartedAt.Add(*got.Spec.TTL)); left < time.Hour-time.Minute || left > time.Hour+time.Minute {
		t.Errorf("it ends in %s", left)
	}
	resp, err = e.sandboxes.Extend(e.ctx(), &sandbox.ExtendRequest{Sandbox: sb.GetID()})
	e.must(err)
	if got, err = entity.Decode[sandbox.Sandbox](&resp.Sandbox); err != nil || got.Spec.TTL != nil {
		t.Errorf("%v, %v", got.Spec.TTL, err)
	}
}

// TestPauseAtTheEndOfItsTime: instead of its end; each way to resume it gives it
// time again.
func TestPauseAtTheEndOfItsTime(t *testing.T) {
	e := newEnv(t)
	resp, err := e.sandboxes.Run(e.ctx(), &sandbox.RunRequest{
		Image: "image", Command: []string{"/bin/guest", "sleep"}, TTL: ptr(time.Hour), ResumeTTL: ptr(2 * time.Hour),
	})
	e.must(err)
	sb, err := entity.Decode[sandbox.Sandbox](&resp.Sandbox)
	e.must(err)
	e.place(sb)
	e.until(sb, sandbox.WaitUntilRunning)
	for _, resume := range []func(){
		func() {
			_, err := e.sandboxes.Resume(e.ctx(), &sandbox.PauseRequest{Sandbox: sb.GetID(), Wait: ptr(true)})
			e.must(err)
		},
		func() {
			st, err := e.sandboxes.Exec(e.ctx(), &sandbox.ExecRequest{Sandbox: sb.GetID(), Command: []string{"/bin/guest", "exit", "0"}})
			e.must(err)
			_, err = all(st)
			e.must(err)
		},
	} {
		_, err := e.sandboxes.Extend(e.ctx(), &sandbox.ExtendRequest{Sandbox: sb.GetID(), TTL: ptr(time.Second)})
		e.must(err)
		paused := e.until(sb, sandbox.WaitUntilPaused)
		if paused.Status.Phase != sandbox.SandboxPhasePaused || paused.Spec.TTL != nil {
			t.Fatalf("%+v, %v", paused.Status, paused.Spec.TTL)
		}
		resume()
		got := e.until(sb, sandbox.WaitUntilRunning)
		if got.Spec.TTL == nil {
			t.Fatal("it has no end after a resume")
		}
		if left := time.Until(got.Status.StartedAt.Add(*got.Spec.TTL)); left < 2*time.Hour-time.Minute || left > 2*time.Hour+time.Minute {
			t.Errorf("it is paused in %s", left)
		}
	}
}

func TestNetworkPolicy(t *testing.T) {
	e := newEnv(t)
	resp, err := e.sandboxes.Run(e.ctx(), &sandbox.RunRequest{
		Image: "image", Command: []string{"/bin/guest", "sleep"}, Egress: &sandbox.Egress{Mode: sandbox.EgressModeList, Allow: []string{"pypi.org"}},
	})
	e.must(err)
	sb, err := entity.Decode[sandbox.Sandbox](&resp.Sandbox)
	e.must(err)
	e.place(sb)
	e.until(sb, sandbox.WaitUntilRunning)
	mode := func() egress.Mode {
		spec, _ := e.machine.Spec(string(sb.ID))
		if spec.Egress == nil {
			return ""
		}
		return spec.Egress.Mode
	}
	if m := mode(); m != egress.List {
		t.Errorf("made with %q", m)
	}
	_, err = e.sandboxes.SetEgress(e.ctx(), &sandbox.EgressRequest{Sandbox: sb.GetID(), Egress: sandbox.Egress{Mode: sandbox.EgressModeNone}})
	e.must(err)
	if m := mode(); m != egress.None {
		t.Errorf("changed to %q", m)
	}
	for _, bad := range []sandbox.Egress{
		{Mode: sandbox.EgressModeList, Allow: []string{"no domain"}}, {Mode: sandbox.EgressModeAll, Allow: []string{"pypi.org"}},
		{Mode: sandbox.EgressModeAll, Deny: []string{"10.0.0.0/99"}},
	} {
		_, err = e.sandboxes.SetEgress(e.ctx(), &sandbox.EgressRequest{Sandbox: sb.GetID(), Egress: bad})
		e.class("a bad rule", err, errs.InvalidArgument)
		_, err = e.sandboxes.Run(e.ctx(), &sandbox.RunRequest{Image: "image", Egress: &bad})
		e.class("a bad rule at the start", err, errs.InvalidArgument)
	}
	// A warm sandbox reaches nothing until it is claimed.
	_, warm := e.pool(1)
	if spec, _ := e.machine.Spec(string(warm[0].ID)); spec.Egress == nil || spec.Egress.Mode != egress.None {
		t.Errorf("a warm sandbox has the policy %+v", spec.Egress)
	}
	_, err = e.sandboxes.SetEgress(e.ctx(), &sandbox.EgressRequest{Sandbox: warm[0].GetID(), Egress: sandbox.Egress{Mode: sandbox.EgressModeAll}})
	e.class("a warm one", err, errs.FailedPrecondition)
	if sb = e.claim(sandbox.RunRequest{}); sb.ID != warm[0].ID || mode() != egress.All {
		t.Errorf("claimed %s with the policy %q", sb.ID, mode())
	}
}

func TestVolumesAreChecked(t *testing.T) {
	e := newEnv(t)
	for _, v := range []sandbox.VolumeRequest{{Disk: "data", Path: "data"}, {Disk: "data", Path: "/"}, {Disk: "data", Path: "/a/../b"}} {
		_, err := e.sandboxes.Run(e.ctx(), &sandbox.RunRequest{Image: "image", Volumes: []sandbox.VolumeRequest{v}})
		e.class(v.Path, err, errs.InvalidArgument)
	}
	_, err := e.sandboxes.Run(e.ctx(), &sandbox.RunRequest{Image: "image", Volumes: []sandbox.VolumeRequest{{Disk: "data", Path: "/data"}}})
	e.class("no such disk", err, errs.NotFound)
}

func TestIdleSandboxes(t *testing.T) {
	e := newEnv(t)
	start := func(action sandbox.IdleAction) *sandbox.Sandbox {
		resp, err := e.sandboxes.Run(e.ctx(), &sandbox.RunRequest{
			Image: "image", Command: []string{"/bin/guest", "sleep"}, IdleTimeout: ptr(time.Second), OnIdle: action,
		})
		e.must(err)
		sb, err := entity.Decode[sandbox.Sandbox](&resp.Sandbox)
		e.must(err)
		e.place(sb)
		return sb
	}
	stopped, paused, busy := start(""), start(sandbox.IdleActionPause), start("")
	e.until(busy, sandbox.WaitUntilRunning)
	st, err := e.sandboxes.Exec(e.ctx(), &sandbox.ExecRequest{Sandbox: busy.GetID(), Command: []string{"/bin/guest", "sleep"}})
	e.must(err)
	defer st.Close()
	if sb := e.until(stopped, sandbox.WaitUntilEnded); sb.Status.Reason != sandbox.EndReasonIdle {
		t.Errorf("ended by %s: %s", sb.Status.Reason, sb.Status.Message)
	}
	if sb := e.until(paused, sandbox.WaitUntilPaused); sb.Status.Phase != sandbox.SandboxPhasePaused || sb.Spec.Desired != sandbox.DesiredStatePaused {
		t.Errorf("%s: %s", sb.Status.Phase, sb.Status.Message)
	}
	// One without an idle time gets it later, and one that ended does not.
	late := e.run("sleep")
	_, err = e.sandboxes.SetIdle(e.ctx(), &sandbox.IdleRequest{Sandbox: late.GetID(), IdleTimeout: ptr(time.Second)})
	e.must(err)
	if sb := e.until(late, sandbox.WaitUntilEnded); sb.Status.Reason != sandbox.EndReasonIdle {
		t.Errorf("ended by %s: %s", sb.Status.Reason, sb.Status.Message)
	}
	_, err = e.sandboxes.SetIdle(e.ctx(), &sandbox.IdleRequest{Sandbox: late.GetID()})
	e.class("the idle time of an ended sandbox", err, errs.FailedPrecondition)
	// An exec wakes it, and it is paused again afterwards.
	wake, err := e.sandboxes.Exec(e.ctx(), &sandbox.ExecRequest{Sandbox: paused.GetID(), Command: []string{"/bin/guest", "exit", "0"}})
	e.must(err)
	if _, err := all(wake); err != nil {
		t.Error(err)
	}
	wait.For(t, "it is paused a second time", func() bool {
		sb, err := entity.Get[sandbox.Sandbox](e.ctx(), e.store.Store, paused.ID)
		return err == nil && sb.Status.Phase == sandbox.SandboxPhasePaused && sb.Status.Pauses == 2
	})
	if sb, err := entity.Get[sandbox.Sandbox](e.ctx(), e.store.Store, busy.ID); err != nil || sb.Status.Phase != sandbox.SandboxPhaseRunning {
		t.Errorf("a sandbox in use: %+v, %v", sb.Status, err)
	}
}

// TestRefusedPause: who waits for a pause that the node will not do is told why, and
// the sandbox goes on.
func TestRefusedPause(t *testing.T) {
	e := newEnv(t)
	sb := e.run("sleep")
	e.machine.SetHook(func(op, _ string, after bool) error {
		if op == "Snapshot" && !after {
			return errs.New(errs.Unimplemented, "no snapshots here").WithHint("use another node")
		}
		return nil
	})
	for range 2 {
		_, err := e.sandboxes.Pause(e.ctx(), &sandbox.PauseRequest{Sandbox: sb.GetID(), Wait: ptr(true)})
		if !errs.Is(err, errs.FailedPrecondition) || !strings.Contains(err.Error(), "no snapshots here") || !strings.Contains(err.Error()+errs.HintOf(err), "use another node") {
			t.Fatalf("a refused pause: %v", err)
		}
		got := e.until(sb, sandbox.WaitUntilRunning)
		if got.Status.Phase != sandbox.SandboxPhaseRunning || got.Spec.Desired != sandbox.DesiredStateRunning {
			t.Errorf("%s, wanted %s", got.Status.Phase, got.Spec.Desired)
		}
	}
	e.machine.SetHook(nil)
	if got := e.pause(sb); got.Status.Phase != sandbox.SandboxPhasePaused {
		t.Errorf("%+v", got.Status)
	}
}
