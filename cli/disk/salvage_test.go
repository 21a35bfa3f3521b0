package disk_test

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/api/core"
	api_disk "miren.dev/runtime/api/disk"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/cli"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/cli/machine"
	"miren.dev/runtime/controllers/disk"
	"miren.dev/runtime/domain/disks"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/lsvd/catalog"
	"miren.dev/runtime/lsvd/node/host"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/proc"
	"miren.dev/runtime/pkg/schema"
	serverdisks "miren.dev/runtime/servers/disks"
	"miren.dev/runtime/testsupport/attachtest"
	"miren.dev/runtime/testsupport/leakcheck"
	"miren.dev/runtime/testsupport/wait"
)

// TestDiskIsSalvaged: the disk daemon of a node cannot send the writes of a sandbox, and
// another node takes the disk over. When the first one is back, a disk is salvaged of its
// writes, also when the server that salvages is killed in the middle. The source keeps
// what the other node has written, and nothing half made stays.
func TestDiskIsSalvaged(t *testing.T) {
	n := newNode(t)
	ctx, stored := t.Context(), t.TempDir()
	if _, err := n.disks.Create(ctx, disks.CreateRequest{Name: "data", SizeBytes: size, Store: stored}); err != nil {
		t.Fatal(err)
	}
	d := n.detached("data")
	volume := disks.Volume{Disk: d.GetID(), Path: "/data"}
	first := n.run(volume)
	n.guest(first, "put", "/data/sent", "of the first node")
	if _, err := n.disks.Snapshot(ctx, "", "data", "sent"); err != nil { // the store has every write
		t.Fatal(err)
	}
	_, err := n.disks.Salvage(ctx, disks.SalvageRequest{Source: "data", Name: "early"})
	refused(t, "salvage before a takeover", err, "not_taken_over")
	n.stop()
	again := n.cannotSend()
	stranded := make([]byte, 16<<20)
	rand.Read(stranded)
	write(t, n.mounted(d.GetID(), "stranded"), stranded)

	taken := n.takeOver(volume, first)
	if got, err := os.ReadFile(filepath.Join(taken.dir, "sent")); err != nil || string(got) != "of the first node" {
		t.Errorf("the other node reads %q, %v", got, err)
	}
	if _, err := os.Stat(filepath.Join(taken.dir, "stranded")); !os.IsNotExist(err) {
		t.Errorf("the other node has what was not sent: %v", err)
	}
	write(t, filepath.Join(taken.dir, "later"), []byte("of the other node"))
	if from := n.get("data").Status.TakenOverFrom; from != string(n.id) {
		t.Errorf("the disk was taken over from %q, not from %s", from, n.id)
	}
	_, err = n.disks.Salvage(ctx, disks.SalvageRequest{Source: "data", Name: "early"})
	refused(t, "salvage while the node is down", err, "node_down")

	// The first node comes back.
	again()
	if err := n.Driver.Delete(ctx, string(first.ID)); err != nil {
		t.Error(err)
	}
	if err := n.Driver.DeleteLogs(ctx, string(first.ID)); err != nil {
		t.Error(err)
	}
	n.phase(core.NodePhaseReady)
	rescued := n.salvageKilled("rescued", d)
	n.start()
	wait.For(t, "the disk is salvaged", func() bool { return n.get(rescued.Name).Status.Phase == api_disk.DiskPhaseReady },
		wait.State(func() any { return n.get(rescued.Name).Status }), wait.Within(time.Minute))
	made, err := n.disks.Salvage(ctx, disks.SalvageRequest{Source: "data", Node: "n", Name: "again"})
	if err != nil {
		t.Fatal(err)
	}
	if s := made.Status; s.SalvagedBytes == nil || *s.SalvagedBytes < int64(len(stranded)) || s.SalvageDamaged == nil || *s.SalvageDamaged || s.Home != "" {
		t.Errorf("a salvaged disk: %+v", s)
	}
	_, err = n.disks.Salvage(ctx, disks.SalvageRequest{Source: "data", Takeover: "takeover-9-9", Name: "none"})
	refused(t, "salvage of a log that is not there", err, "not_ready")
	for _, x := range []*api_disk.Disk{rescued, made} {
		sb := n.sandbox()
		if _, err := n.ctl.Mounts(ctx, sb, []disks.Volume{{Disk: x.GetID(), Path: "/data"}}); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(n.mounted(x.GetID(), "stranded")); err != nil || !bytes.Equal(got, stranded) {
			t.Errorf("%s lacks what was stranded: %d bytes, %v", x.Name, len(got), err)
		}
		if got, err := os.ReadFile(n.mounted(x.GetID(), "sent")); err != nil || string(got) != "of the first node" {
			t.Errorf("%s has %q, %v", x.Name, got, err)
		}
		if _, err := os.Stat(n.mounted(x.GetID(), "later")); !os.IsNotExist(err) {
			t.Errorf("%s has a write of the other node: %v", x.Name, err)
		}
		if err := n.ctl.Release(ctx, sb.GetID()); err != nil {
			t.Fatal(err)
		}
		n.detached(x.Name)
	}
	if got, err := os.ReadFile(filepath.Join(taken.dir, "later")); err != nil || string(got) != "of the other node" {
		t.Errorf("the source has %q after the salvages, %v", got, err)
	}

	// A disk that is deleted while it is half made leaves nothing.
	n.stop()
	dropped := n.salvageKilled("dropped", d)
	if _, err := entity.ModifySpec(ctx, n.store, dropped.GetID(), func(d *api_disk.Disk) error { d.Spec.Deleted = true; return nil }); err != nil {
		t.Fatal(err)
	}
	if _, err := taken.ctl.Reconcile(ctx, dropped.ID); err != nil { // it is for the node that salvages it
		t.Error(err)
	}
	n.get(dropped.Name)
	n.start()
	wait.For(t, "the half made disk is gone", func() bool {
		_, err := n.disks.Find(ctx, "", dropped.Name)
		return errs.Is(err, errs.NotFound)
	}, wait.Within(time.Minute))
	st, _, err := host.OpenStore(ctx, stored)
	if err != nil {
		t.Fatal(err)
	}
	all, err := catalog.List(ctx, st)
	if err != nil || len(all) != 3 {
		t.Errorf("the store has %d volumes, %v", len(all), err)
	}
	for _, v := range all {
		if v.Name == "" {
			t.Errorf("volume %s was left", v.ID)
		}
	}
	n.delete(rescued.Name)
	n.delete(made.Name)
	taken.end()
}

// cannotSend takes from the disk daemon the right to open files: it goes on to serve, but
// the store gets nothing. It returns a function that gives the right back.
func (n *node) cannotSend() (again func()) {
	n.t.Helper()
	p, err := proc.Find(serverdisks.Record(n.Instance.Socket("lsvd")))
	if err != nil || p == nil {
		n.t.Fatalf("the disk daemon: %v, %v", p, err)
	}
	var was unix.Rlimit
	if err := unix.Prlimit(p.PID(), unix.RLIMIT_NOFILE, nil, &was); err != nil {
		n.t.Fatal(err)
	}
	set := func(l unix.Rlimit) {
		if err := unix.Prlimit(p.PID(), unix.RLIMIT_NOFILE, &l, nil); err != nil {
			n.t.Fatal(err)
		}
	}
	set(unix.Rlimit{Cur: 4, Max: was.Max}) // those are in use
	n.t.Cleanup(func() { _ = unix.Prlimit(p.PID(), unix.RLIMIT_NOFILE, &was, nil) })
	return func() { set(was) }
}

// mounted is the path on this machine of a file of a disk that this node has mounted.
func (n *node) mounted(d id.Disk, file string) string {
	return filepath.Join(n.Instance.DiskMounts(), string(d), file)
}

func (n *node) phase(p core.NodePhase) {
	n.t.Helper()
	if _, err := entity.ModifyStatus(n.t.Context(), n.store, n.id, func(n *core.Node) error { n.Status.Phase = p; return nil }); err != nil {
		n.t.Fatal(err)
	}
}

// write makes a file durable.
func write(t *testing.T, path string, data []byte) {
	t.Helper()
	f, err := os.Create(path)
	if err == nil {
		_, err = f.Write(data)
	}
	if err == nil {
		err = f.Sync()
	}
	if err == nil {
		err = f.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
}

// taken is a disk on the node that has taken it over.
type taken struct {
	ctl *disk.Reconciler
	dir string
	end func() // detaches the disk
}

// takeOver lets the node be down, and another one mount a disk that a sandbox there had.
func (n *node) takeOver(v disks.Volume, had *sandbox.Sandbox) *taken {
	n.t.Helper()
	ctx := n.t.Context()
	if _, err := entity.ModifyStatus(ctx, n.store, had.GetID(), func(s *sandbox.Sandbox) error { s.Status.Phase = sandbox.SandboxPhaseFailed; return nil }); err != nil {
		n.t.Fatal(err)
	}
	n.phase(core.NodePhaseDown)
	other := core.NewNode()
	other.Name, other.Spec.Arch, other.Spec.CPUMillis, other.Spec.MemoryBytes = "other", "amd64", 1000, 1<<30
	if err := entity.Create(ctx, n.store, other); err != nil {
		n.t.Fatal(err)
	}
	in := leakcheck.Installation(n.t)
	ctl, _, _, err := control(n.store, in, other.GetID(), n.Logger)
	if err != nil {
		n.t.Fatal(err)
	}
	sb := sandbox.NewSandbox()
	sb.Project, sb.Spec.Node, sb.Spec.Template.Image = n.project, other.GetID(), n.Image
	if err := entity.Create(ctx, n.store, sb); err != nil {
		n.t.Fatal(err)
	}
	mounts, err := ctl.Mounts(ctx, sb, []disks.Volume{v})
	if err != nil {
		n.t.Fatal(err)
	}
	return &taken{ctl: ctl, dir: mounts[0].Source, end: func() {
		n.t.Helper()
		if err := ctl.Release(ctx, sb.GetID()); err != nil {
			n.t.Fatal(err)
		}
		if _, err := ctl.Reconcile(ctx, schema.ID(v.Disk)); err != nil {
			n.t.Fatal(err)
		}
		args := []string{"lsvd", "daemon", "--stop", "--state-dir", in.StateDir, "--run-dir", filepath.Dir(in.RunDir)}
		if code := cli.Main(args, console.Std(), machine.Commands); code != 0 {
			n.t.Errorf("stop the other disk daemon: code %d", code)
		}
	}}
}

// salvageKilled creates a disk that is salvaged, and kills the server that salvages it when
// half of it is made.
func (n *node) salvageKilled(name string, source *api_disk.Disk) *api_disk.Disk {
	n.t.Helper()
	d := api_disk.NewDisk()
	d.Project, d.Name = n.project, name
	d.Spec.SizeBytes, d.Spec.Store, d.Spec.SourceDisk, d.Spec.SalvageNode = size, source.Spec.Store, string(source.ID), string(n.id)
	if err := entity.Create(n.t.Context(), n.store, d); err != nil {
		n.t.Fatal(err)
	}
	spec, err := json.Marshal(serverSpec{
		URL: n.url, StateDir: n.Instance.StateDir, RunDir: filepath.Dir(n.Instance.RunDir), Node: n.id, Sandbox: n.sandbox().GetID(), Disk: d.GetID(),
	})
	if err != nil {
		n.t.Fatal(err)
	}
	cmd := exec.Command(attachtest.Executable(n.t))
	cmd.Env = append(os.Environ(), serverEnv+"="+string(spec))
	cmd.Stderr = n.t.Output()
	if err := cmd.Start(); err != nil {
		n.t.Fatal(err)
	}
	begun := func() bool {
		found, _ := filepath.Glob(n.Instance.State("lsvd", "volumes", source.Status.Volume, "takeover-*", "salvage.json")) // the pattern is well formed
		return len(found) == 1
	}
	wait.For(n.t, "the salvage has begun", begun, wait.Every(time.Millisecond), wait.Within(time.Minute))
	if err := cmd.Process.Kill(); err != nil {
		n.t.Error(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	wait.Receive(n.t, "the end of the server", ended)
	if got := n.get(name); !begun() || got.Status.Volume != "" {
		n.t.Fatalf("the server was not killed in the middle: %+v", got.Status)
	}
	return d
}
