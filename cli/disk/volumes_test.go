package disk_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/api"
	"miren.dev/runtime/api/core"
	api_disk "miren.dev/runtime/api/disk"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/cli"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/cli/machine"
	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/components/filesystem"
	"miren.dev/runtime/controllers/disk"
	"miren.dev/runtime/controllers/kit"
	"miren.dev/runtime/domain/disks"
	"miren.dev/runtime/domain/projects"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/informer"
	"miren.dev/runtime/entity/pgstore"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/instance"
	"miren.dev/runtime/pkg/schema"
	serverdisks "miren.dev/runtime/servers/disks"
	"miren.dev/runtime/testsupport/attachtest"
	"miren.dev/runtime/testsupport/pgtest"
	"miren.dev/runtime/testsupport/private"
	"miren.dev/runtime/testsupport/runsctest"
	"miren.dev/runtime/testsupport/wait"
)

// TestMain makes the test binary the program whose commands are the disk daemon
// and its holder, or a server that is killed.
func TestMain(m *testing.M) {
	switch {
	case len(os.Args) > 1 && os.Args[1] == "lsvd":
		os.Exit(cli.Main(os.Args[1:], console.Std(), machine.Commands))
	case os.Getenv(serverEnv) != "":
		if err := serve(os.Getenv(serverEnv)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	default:
		os.Exit(private.Main(m))
	}
}

const size = 64 << 20

// node is a node with real sandboxes, disks and a store.
type node struct {
	*runsctest.Machine
	t       *testing.T
	url     string
	store   entity.Store
	id      id.Node
	project schema.ID
	disks   *disks.Service
	ctl     *disk.Reconciler
	stop    func() // ends the controller, as the end of the server does
}

func newNode(t *testing.T) *node {
	t.Helper()
	attachtest.Need(t, "mkfs.ext4", "resize2fs")
	n := &node{Machine: runsctest.New(t), t: t}
	n.url = pgtest.URL(t)
	s, err := pgstore.Open(t.Context(), pgstore.Config{URL: n.url, Kinds: api.Kinds()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	n.store = s
	if err := projects.Ensure(t.Context(), s, projects.Default); err != nil {
		t.Fatal(err)
	}
	if n.project, err = projects.Find(t.Context(), s, ""); err != nil {
		t.Fatal(err)
	}
	x := core.NewNode()
	x.Name, x.Spec.Arch, x.Spec.CPUMillis, x.Spec.MemoryBytes = "n", "amd64", 1000, 1<<30
	if err := entity.Create(t.Context(), s, x); err != nil {
		t.Fatal(err)
	}
	n.id = x.GetID()
	t.Cleanup(n.stopDaemon)
	n.start()
	t.Cleanup(func() { n.stop() })
	return n
}

// stopDaemon ends the disk daemon, which must have nothing attached. After a
// failed test it removes the remaining mounts: a daemon that is killed while it is
// the last process with them waits for itself in the kernel.
func (n *node) stopDaemon() {
	if n.t.Failed() {
		left, _ := filepath.Glob(n.Instance.DiskMounts() + "/*") // the pattern is well formed
		for _, dir := range left {
			if err := filesystem.Abandon(dir); err != nil {
				n.t.Error(err)
			}
		}
		n.lsvd("detach", "--all", "--force")
	}
	n.lsvd("daemon", "--stop")
}

func (n *node) lsvd(args ...string) {
	args = append(append([]string{"lsvd"}, args...), "--state-dir", n.Instance.StateDir, "--run-dir", filepath.Dir(n.Instance.RunDir))
	if code := cli.Main(args, console.Std(), machine.Commands); code != 0 {
		n.t.Errorf("%v: code %d", args, code)
	}
}

// start starts the controller, as a server does.
func (n *node) start() {
	n.t.Helper()
	ctl, informers, rt, err := control(n.store, n.Instance, n.id, n.Logger)
	if err != nil {
		n.t.Fatal(err)
	}
	n.ctl, n.disks = ctl, &disks.Service{Store: n.store, Informers: informers}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 2)
	go func() { ended <- informers.Run(ctx) }()
	go func() { ended <- rt.Run(ctx) }()
	wait.Receive(n.t, "the controller has begun", rt.Synced())
	stopped := false
	n.stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		for range 2 {
			if err := wait.Receive(n.t, "the end of the controller", ended); err != nil {
				n.t.Error(err)
			}
		}
	}
}

// control makes the server's parts for disks.
func control(store entity.Store, in *instance.Instance, nid id.Node, logger *slog.Logger) (*disk.Reconciler, *informer.Set, *kit.Runtime, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, nil, nil, err
	}
	volumes := &serverdisks.Volumes{Instance: in, Program: exe, Logger: logger}
	url, err := volumes.DefaultStore()
	if err != nil {
		return nil, nil, nil, err
	}
	informers := informer.New(informer.Config{Reader: store, Logger: slog.New(slog.DiscardHandler)})
	rt := kit.New(kit.Config{Informers: informers, Logger: logger})
	ctl := &disk.Reconciler{Store: store, Volumes: volumes, Node: nid, MountDir: in.DiskMounts(), DefaultStore: url, Logger: logger}
	copies := &disk.Copies{Store: store, Volumes: volumes, Node: nid, DefaultStore: url, Logger: logger}
	return ctl, informers, rt, errors.Join(rt.Add(ctl.Controller()), rt.Add(copies.Controller()))
}

// create makes a disk.
func (n *node) create(name string) *api_disk.Disk {
	n.t.Helper()
	d, err := n.disks.Create(n.t.Context(), disks.CreateRequest{Name: name, SizeBytes: size})
	if err != nil {
		n.t.Fatal(err)
	}
	return d
}

// run starts a sandbox with volumes.
func (n *node) run(volumes ...disks.Volume) *sandbox.Sandbox {
	n.t.Helper()
	sb := n.sandbox()
	mounts, err := n.ctl.Mounts(n.t.Context(), sb, volumes)
	if err != nil {
		n.t.Fatal(err)
	}
	n.ensure(sb, mounts)
	return sb
}

// sandbox creates the entity of a sandbox of this node.
func (n *node) sandbox() *sandbox.Sandbox {
	n.t.Helper()
	sb := sandbox.NewSandbox()
	sb.Project, sb.Spec.Node, sb.Spec.Template.Image = n.project, n.id, n.Image
	if err := entity.Create(n.t.Context(), n.store, sb); err != nil {
		n.t.Fatal(err)
	}
	return sb
}

func (n *node) ensure(sb *sandbox.Sandbox, mounts []execution.Mount) {
	n.t.Helper()
	in, err := n.Driver.Ensure(n.t.Context(), execution.Spec{
		ID: string(sb.ID), Image: n.Image, Command: []string{"/bin/guest", "sleep"}, Network: execution.NetworkNone, User: "app",
		CPUMillis: 2000, MemoryBytes: 128 << 20, PIDs: 64, DiskBytes: 64 << 20, Mounts: mounts,
	})
	if err != nil || in.Phase != execution.Running {
		n.t.Fatalf("%+v, %v", in, err)
	}
}

// end ends a sandbox as the controller of sandboxes does.
func (n *node) end(sb *sandbox.Sandbox) {
	n.t.Helper()
	if err := n.Driver.Delete(n.t.Context(), string(sb.ID)); err != nil {
		n.t.Fatal(err)
	}
	if err := n.ctl.Release(n.t.Context(), sb.GetID()); err != nil {
		n.t.Fatal(err)
	}
	if err := n.Driver.DeleteLogs(n.t.Context(), string(sb.ID)); err != nil {
		n.t.Error(err)
	}
}

func (n *node) guest(sb *sandbox.Sandbox, command ...string) string {
	n.t.Helper()
	return n.Env().Output(n.t, string(sb.ID), execution.ExecSpec{Command: append([]string{"/bin/guest"}, command...)})
}

func (n *node) get(name string) *api_disk.Disk {
	n.t.Helper()
	d, err := n.disks.Find(n.t.Context(), "", name)
	if err != nil {
		n.t.Fatal(err)
	}
	return d
}

// detached waits until no node has a disk.
func (n *node) detached(name string) *api_disk.Disk {
	n.t.Helper()
	wait.For(n.t, "disk "+name+" is detached", func() bool { return n.get(name).Status.Node == "" }, wait.State(func() any { return n.get(name).Status }))
	return n.get(name)
}

func (n *node) delete(name string) {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(n.t.Context(), time.Minute)
	defer cancel()
	if err := n.disks.Delete(ctx, "", name); err != nil {
		n.t.Fatalf("delete %s: %v; it is %+v", name, err, n.get(name).Status)
	}
	if _, err := n.disks.Find(n.t.Context(), "", name); !errs.Is(err, errs.NotFound) {
		n.t.Errorf("find a deleted disk: %v", err)
	}
}

// refused asserts that an error has a reason.
func refused(t *testing.T, what string, err error, reason string) {
	t.Helper()
	if !errs.Is(err, errs.FailedPrecondition) || errs.Detail(err, "reason") != reason {
		t.Errorf("%s: %v (%s), want a refusal with reason %s", what, err, errs.Detail(err, "reason"), reason)
	}
}

// TestDiskOutlivesSandboxes: what one sandbox wrote, the next one reads. Between
// them the disk is detached, and the store has everything.
func TestDiskOutlivesSandboxes(t *testing.T) {
	n := newNode(t)
	n.create("data")
	d := n.detached("data")
	if d.Status.Phase != api_disk.DiskPhaseReady || d.Status.SizeBytes != size || !d.Status.Formatted {
		t.Fatalf("a new disk: %+v", d.Status)
	}
	one := n.run(disks.Volume{Disk: d.GetID(), Path: "/data"})
	n.guest(one, "put", "/data/file", "of the first")
	refused(t, "delete a disk in use", n.disks.Delete(t.Context(), "", "data"), "in_use")
	_, err := n.ctl.Mounts(t.Context(), n.sandbox(), []disks.Volume{{Disk: d.GetID(), Path: "/data"}})
	refused(t, "a second writer", err, "has_writer")
	reader := n.run(disks.Volume{Disk: d.GetID(), Path: "/in", ReadOnly: true})
	if got := n.guest(reader, "read", "/in/file"); got != "of the first" {
		t.Errorf("a reader beside the writer reads %q", got)
	}
	if d = n.get("data"); d.Status.Node != n.id || d.Status.Device == "" || d.Status.AttachedAt == nil {
		t.Errorf("while it is mounted: %+v", d.Status)
	}
	n.end(one)
	n.end(reader)
	n.detached("data")

	two := n.run(disks.Volume{Disk: d.GetID(), Path: "/mnt/data"})
	if got := n.guest(two, "read", "/mnt/data/file"); got != "of the first" {
		t.Errorf("the next sandbox reads %q", got)
	}
	n.end(two)
	n.delete("data")
}

// TestSnapshotsClonesAndResize: a clone has the files of its snapshot, or of the
// moment it was made, and grows with its file system, mounted or not.
func TestSnapshotsClonesAndResize(t *testing.T) {
	n := newNode(t)
	ctx := t.Context()
	d := n.create("data")
	sb := n.run(disks.Volume{Disk: d.GetID(), Path: "/data"})
	n.guest(sb, "put", "/data/file", "first")
	if _, err := n.disks.Snapshot(ctx, "", "data", "monday"); err != nil {
		t.Fatal(err)
	}
	n.guest(sb, "put", "/data/file", "second")
	if _, err := n.disks.Snapshot(ctx, "", "data", "monday"); !errs.Is(err, errs.AlreadyExists) {
		t.Errorf("a snapshot whose name is taken: %v", err)
	}
	old, err := n.disks.Clone(ctx, disks.CloneRequest{Source: "data", Snapshot: "monday", Name: "old"})
	if err != nil {
		t.Fatal(err)
	}
	now, err := n.disks.Clone(ctx, disks.CloneRequest{Source: "data", Name: "now"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := n.disks.Clone(ctx, disks.CloneRequest{Source: "data", Snapshot: "tuesday", Name: "none"}); !errs.Is(err, errs.NotFound) {
		t.Errorf("clone of a snapshot that does not exist: %v", err)
	}
	both := n.run(disks.Volume{Disk: old.GetID(), Path: "/old"}, disks.Volume{Disk: now.GetID(), Path: "/now"})
	for file, want := range map[string]string{"/old/file": "first", "/now/file": "second"} {
		if got := n.guest(both, "read", file); got != want {
			t.Errorf("%s has %q, not %q", file, got, want)
		}
	}
	// One is larger while it is mounted, the other while it is not.
	_, err = n.disks.Resize(ctx, "", "old", size/2)
	refused(t, "shrink", err, "shrink")
	if _, err := n.disks.Resize(ctx, "", "old", 4*size); filesystem.GrowsMounted(filesystem.Ext4) {
		if err != nil {
			t.Fatal(err)
		}
		n.guest(both, "write", "/old/big", "100")
	} else {
		refused(t, "let a mounted file system grow", err, "in_use")
	}
	n.end(both)
	wait.For(t, "the file system that was in use is larger", func() bool { return n.get("old").Status.SizeBytes == 4*size },
		wait.State(func() any { return n.get("old").Status }))
	n.detached("now")
	if _, err := n.disks.Resize(ctx, "", "now", 4*size); err != nil {
		t.Fatal(err)
	}
	large := n.run(disks.Volume{Disk: now.GetID(), Path: "/now"})
	n.guest(large, "write", "/now/big", "100")
	n.end(large)

	n.end(sb)
	n.detached("data")
	refused(t, "delete a disk with a snapshot", n.disks.Delete(ctx, "", "data"), "has_snapshots")
	if err := n.disks.DeleteSnapshot(ctx, "", "data", "monday"); err != nil {
		t.Fatal(err)
	}
	n.delete("data")
	for _, name := range []string{"old", "now"} {
		n.detached(name)
		n.delete(name)
	}
}

// TestDetachWaitsForItsSandbox: a disk whose mount is released while its sandbox
// still runs is not detached; its message says so, and no write is lost.
func TestDetachWaitsForItsSandbox(t *testing.T) {
	n := newNode(t)
	d := n.create("data")
	sb := n.run(disks.Volume{Disk: d.GetID(), Path: "/data"})
	if err := n.ctl.Release(t.Context(), sb.GetID()); err != nil {
		t.Fatal(err)
	}
	wait.For(t, "the disk says that it is in use", func() bool { return strings.Contains(n.get("data").Status.Message, "in use") },
		wait.State(func() any { return n.get("data").Status }), wait.Within(time.Minute))
	n.guest(sb, "put", "/data/late", "after the release")
	if d := n.get("data"); d.Status.Node != n.id {
		t.Errorf("the disk of a running sandbox is detached: %+v", d.Status)
	}
	n.end(sb)
	if d := n.detached("data"); d.Status.Message != "" {
		t.Errorf("a detached disk says %q", d.Status.Message)
	}
	next := n.run(disks.Volume{Disk: d.GetID(), Path: "/data", ReadOnly: true})
	if got := n.guest(next, "read", "/data/late"); got != "after the release" {
		t.Errorf("the next sandbox reads %q", got)
	}
	n.end(next)
	n.detached("data")
	n.delete("data")
}
