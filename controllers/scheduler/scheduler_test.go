package scheduler

import (
	"fmt"
	"log/slog"
	"math"
	"strings"
	"testing"

	"miren.dev/runtime/api"
	"miren.dev/runtime/api/addon"
	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/disk"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/controllers/kit"
	"miren.dev/runtime/controllers/kit/kittest"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/informer"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/testsupport/pgtest"
	"miren.dev/runtime/testsupport/wait"
)

const gib = 1 << 30

type fixture struct {
	*testing.T
	store   entity.Store
	project schema.ID
}

func setup(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{T: t, store: pgtest.Store(t, api.Kinds()...)}
	p := core.ProjectKind.New().(*core.Project)
	p.Name = "default"
	f.create(p)
	f.project = p.ID
	return f
}

func (f *fixture) create(o schema.Object) {
	f.Helper()
	if err := entity.Create(f.Context(), f.store, o); err != nil {
		f.Fatal(err)
	}
}

func (f *fixture) node(name string, cpu, mem int64) *core.Node {
	f.Helper()
	n := core.NodeKind.New().(*core.Node)
	n.Name, n.Spec.Arch, n.Spec.CPUMillis, n.Spec.MemoryBytes = name, "amd64", cpu, mem
	n.Status.Phase = core.NodePhaseReady
	f.create(n)
	return n
}

func (f *fixture) sandbox(cpu, mem int64) *sandbox.Sandbox {
	f.Helper()
	s := sandbox.SandboxKind.New().(*sandbox.Sandbox)
	s.Project, s.Spec.Template.Image = f.project, "img@sha256:0"
	s.Spec.Template.Resources.CPUMillis, s.Spec.Template.Resources.MemoryBytes = cpu, mem
	f.create(s)
	return s
}

func (f *fixture) get(s *sandbox.Sandbox) *sandbox.Sandbox {
	f.Helper()
	got, err := entity.Get[sandbox.Sandbox](f.Context(), f.store, s.ID)
	if err != nil {
		f.Fatal(err)
	}
	return got
}

func (f *fixture) run() {
	r := &Reconciler{Logger: slog.New(slog.DiscardHandler)}
	r.Store = kittest.Hold(f, f.store, r.Controller())
	kittest.Run(f, informer.New(informer.Config{Reader: f.store}), kit.Config{}, r.Controller())
}

func TestSchedules(t *testing.T) {
	f := setup(t)
	a := f.node("a", 2000, 4*gib)
	first := f.sandbox(1000, gib)
	f.run()
	wait.For(f, "the first is placed", func() bool { return f.get(first).Spec.Node == a.GetID() })
	if p := f.get(first).Status.Phase; p != sandbox.SandboxPhaseScheduled {
		t.Errorf("phase %s", p)
	}

	second, third := f.sandbox(1000, gib), f.sandbox(1000, gib)
	wait.For(f, "the second is placed", func() bool { return f.get(second).Spec.Node == a.GetID() })
	wait.For(f, "the third says why not", func() bool {
		return strings.Contains(f.get(third).Status.Message, "a: 0 of 2 CPU free")
	})
	small := f.sandbox(10, gib) // no CPU either
	wait.For(f, "the small one says why not", func() bool { return f.get(small).Status.Message != "" })

	// Room by an end, then by a new node.
	if _, err := entity.ModifyStatus(t.Context(), f.store, first.GetID(), func(s *sandbox.Sandbox) error {
		s.Status.Phase = sandbox.SandboxPhaseStopped
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	wait.For(f, "the third takes the room", func() bool { return f.get(third).Spec.Node == a.GetID() })
	if got := f.get(third).Status; got.Message != "" || got.Phase != sandbox.SandboxPhaseScheduled {
		t.Errorf("status %+v", got)
	}
	if f.get(small).Spec.Node != "" {
		t.Error("the small one was placed before the older third")
	}
	b := f.node("b", 500, 2*gib)
	wait.For(f, "the small one goes to the new node", func() bool { return f.get(small).Spec.Node == b.GetID() })
}

func TestNeverOvercommits(t *testing.T) {
	f := setup(t)
	for i := range 3 {
		f.node(fmt.Sprint("n", i), 1000, 64*gib)
	}
	f.run()
	var all []*sandbox.Sandbox
	for range 40 {
		all = append(all, f.sandbox(100, gib))
	}
	placed := func() (n int, cpu map[string]int64) {
		cpu = map[string]int64{}
		for _, s := range all {
			if got := f.get(s); got.Spec.Node != "" {
				n++
				cpu[string(got.Spec.Node)] += got.Spec.Template.Resources.CPUMillis
			}
		}
		return n, cpu
	}
	wait.For(f, "30 are placed", func() bool { n, _ := placed(); return n == 30 })
	wait.For(f, "10 say why not", func() bool {
		n := 0
		for _, s := range all {
			if f.get(s).Status.Message != "" {
				n++
			}
		}
		return n == 10
	})
	if n, cpu := placed(); n != 30 {
		t.Errorf("%d placed: %v", n, cpu)
	} else {
		for node, c := range cpu {
			if c > 1000 {
				t.Errorf("%s has %d", node, c)
			}
		}
	}
}

func TestStoppedAndCordoned(t *testing.T) {
	f := setup(t)
	cordoned := f.node("cordoned", 2000, 4*gib)
	cordoned.Spec.Cordoned = true
	if err := entity.UpdateSpec(t.Context(), f.store, cordoned); err != nil {
		t.Fatal(err)
	}
	stopped := f.sandbox(100, gib)
	stopped.Spec.Desired = sandbox.DesiredStateStopped
	if err := entity.UpdateSpec(t.Context(), f.store, stopped); err != nil {
		t.Fatal(err)
	}
	f.run()
	waits := f.sandbox(100, gib)
	wait.For(f, "it says why not", func() bool { return strings.Contains(f.get(waits).Status.Message, "cordoned: cordoned") })
	if s := f.get(stopped); s.Spec.Node != "" || s.Status.Phase != sandbox.SandboxPhaseStopped || s.Status.Reason != sandbox.EndReasonUser || s.Status.EndedAt == nil {
		t.Errorf("a sandbox that is not wanted: node %q, %+v", s.Spec.Node, s.Status)
	}
	cordoned.Spec.Cordoned = false
	if err := entity.UpdateSpec(t.Context(), f.store, cordoned); err != nil {
		t.Fatal(err)
	}
	wait.For(f, "it is placed", func() bool { return f.get(waits).Spec.Node == cordoned.GetID() })
}

// TestDiskKeepsSandboxesTogether: a pool's sandboxes that mount a disk share a node
// though they would be spread, as a disk is attached to one node at a time.
func TestDiskKeepsSandboxesTogether(t *testing.T) {
	f := setup(t)
	f.node("a", 8000, 64*gib)
	f.node("b", 8000, 64*gib)
	d := disk.NewDisk()
	d.Project, d.Name, d.Spec.SizeBytes = f.project, "data", disk.MinSize
	f.create(d)
	p := sandbox.NewSandboxPool()
	p.Project, p.Spec.Template.Image = f.project, "img@sha256:0"
	f.create(p)
	member := func() *sandbox.Sandbox {
		s := sandbox.NewSandbox()
		s.Project, s.Spec.Pool, s.Spec.Template.Image = f.project, p.GetID(), "img@sha256:0"
		s.Spec.Template.Volumes = []sandbox.Volume{{Disk: d.GetID(), Path: "/data", ReadOnly: true}}
		f.create(s)
		return s
	}
	all := []*sandbox.Sandbox{member(), member()} // decided together
	f.run()
	wait.For(f, "both are placed", func() bool { return f.get(all[0]).Spec.Node != "" && f.get(all[1]).Spec.Node != "" })
	all = append(all, member())
	wait.For(f, "the third is placed", func() bool { return f.get(all[2]).Spec.Node != "" })
	for _, s := range all {
		if got, want := f.get(s).Spec.Node, f.get(all[0]).Spec.Node; got != want {
			t.Errorf("sandbox %s is on %s, want %s", s.ID, got, want)
		}
	}
}

// TestSandboxGoesToItsDisk: a sandbox that mounts a disk whose data is in a
// directory of a node runs there.
func TestSandboxGoesToItsDisk(t *testing.T) {
	f := setup(t)
	home := f.node("a", 8000, 64*gib)
	f.node("b", 1000, gib) // fuller with it, and so taken without the disk
	d := disk.NewDisk()
	d.Project, d.Name, d.Spec.SizeBytes = f.project, "data", disk.MinSize
	f.create(d)
	d.Status.Phase, d.Status.Home = disk.DiskPhaseReady, string(home.ID)
	if err := entity.UpdateStatus(t.Context(), f.store, d); err != nil {
		t.Fatal(err)
	}
	s := sandbox.NewSandbox()
	s.Project, s.Spec.Template.Image = f.project, "img@sha256:0"
	s.Spec.Template.Volumes = []sandbox.Volume{{Disk: d.GetID(), Path: "/data"}}
	f.create(s)
	f.run()
	wait.For(f, "it is placed", func() bool { return f.get(s).Spec.Node != "" })
	if got := f.get(s).Spec.Node; got != home.GetID() {
		t.Errorf("the sandbox is on %s", got)
	}
}

// TestServicesOnRunners: the services of an app, with an addon or without, are spread over the server and a runner that may
// run it; the others stay on the server.
func TestServicesOnRunners(t *testing.T) {
	f := setup(t)
	server := f.node("server", 8000, 64*gib)
	newApp := func(name string) *app.App {
		a := app.NewApp()
		a.Project, a.Name = f.project, name
		f.create(a)
		return a
	}
	shop, api, other := newApp("shop"), newApp("api"), newApp("other")
	edge := core.NewNode()
	edge.Name, edge.Spec.Arch, edge.Spec.CPUMillis, edge.Spec.MemoryBytes, edge.Spec.Runner = "edge", "amd64", 8000, 64*gib, true
	edge.Spec.Apps = []string{string(shop.ID), string(api.ID)}
	edge.Status.Phase = core.NodePhaseReady
	f.create(edge)
	db := addon.NewAddon()
	db.Project, db.Name, db.Spec.Engine = f.project, "db", addon.EnginePostgres
	f.create(db)
	use := addon.NewAddonAttachment()
	use.Project, use.Spec.Addon, use.Spec.App, use.Spec.Key = f.project, db.GetID(), api.GetID(), "db/api"
	f.create(use)
	f.run()
	for _, tc := range []struct {
		app     *app.App
		runners int
	}{{shop, 1}, {api, 1}, {other, 0}} {
		p := sandbox.NewSandboxPool()
		p.Project, p.Spec.App, p.Spec.Template.Image = f.project, tc.app.GetID(), "img@sha256:0"
		f.create(p)
		on := map[id.Node]int{}
		for range 2 {
			s := sandbox.NewSandbox()
			s.Project, s.Spec.App, s.Spec.Pool, s.Spec.Template.Image = f.project, tc.app.GetID(), p.GetID(), "img@sha256:0"
			f.create(s)
			wait.For(f, "it is placed", func() bool { return f.get(s).Spec.Node != "" })
			got := f.get(s)
			if on[got.Spec.Node]++; got.Spec.Runner != (got.Spec.Node == edge.GetID()) {
				t.Errorf("%s: on node %s, runner %v", tc.app.Name, got.Spec.Node, got.Spec.Runner)
			}
		}
		if on[edge.GetID()] != tc.runners || on[server.GetID()] != 2-tc.runners {
			t.Errorf("%s: %v", tc.app.Name, on)
		}
	}
}

// A sandbox whose memory and overhead together exceed an int64 would reserve less than nothing.
func TestMemoryThatNoNodeHas(t *testing.T) {
	f := setup(t)
	s := sandbox.SandboxKind.New().(*sandbox.Sandbox)
	s.Project, s.Spec.Template.Image = f.project, "img@sha256:0"
	s.Spec.Template.Resources.MemoryBytes = math.MaxInt64
	if err := entity.Create(t.Context(), f.store, s); !errs.Is(err, errs.InvalidArgument) {
		_, memory := s.Reserved()
		t.Errorf("the store took it, and it reserves %d bytes: %v", memory, err)
	}

	f.node("a", 2000, 4*gib)
	most := f.sandbox(10, sandbox.MaxMemoryBytes)
	f.run()
	wait.For(f, "the largest one says why not", func() bool { return strings.Contains(f.get(most).Status.Message, "memory free") })
}
