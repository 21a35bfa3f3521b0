package disk_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/api"
	api_disk "miren.dev/runtime/api/disk"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/domain/disks"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/informer"
	"miren.dev/runtime/entity/pgstore"
	"miren.dev/runtime/lsvd"
	"miren.dev/runtime/lsvd/node/host"
	"miren.dev/runtime/pkg/instance"
	"miren.dev/runtime/pkg/proc"
	"miren.dev/runtime/pkg/schema"
	serverdisks "miren.dev/runtime/servers/disks"
	"miren.dev/runtime/testsupport/attachtest"
	"miren.dev/runtime/testsupport/wait"
)

// serverEnv holds the serverSpec of a process that is a server.
const serverEnv = "DISK_TEST_SERVER"

// serverSpec has the instance that a server serves, and the sandbox for which it mounts a new disk.
type serverSpec struct {
	URL, StateDir, RunDir string
	Node                  id.Node
	Sandbox               id.Sandbox
	Disk                  id.Disk
}

// serve is a server that mounts a disk for a sandbox, says so, and goes on until
// it is killed.
func serve(text string) error {
	var s serverSpec
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		return err
	}
	os.Unsetenv(serverEnv) // not for the disk daemon
	ctx := context.Background()
	store, err := pgstore.Open(ctx, pgstore.Config{URL: s.URL, Kinds: api.Kinds()})
	if err != nil {
		return err
	}
	in, err := instance.Find(s.StateDir, s.RunDir)
	if err != nil {
		return err
	}
	ctl, informers, rt, err := control(store, in, s.Node, slog.New(slog.NewTextHandler(os.Stderr, nil)))
	if err != nil {
		return err
	}
	go func() { _ = informers.Run(ctx) }()
	ended := make(chan error, 1)
	go func() { ended <- rt.Run(ctx) }()
	sb, err := entity.Get[sandbox.Sandbox](ctx, store, s.Sandbox)
	if err != nil {
		return err
	}
	_, err = informer.Of[api_disk.Disk](informers).Await(ctx, schema.ID(s.Disk), func(d *api_disk.Disk) (bool, error) {
		return d.Status.Phase == api_disk.DiskPhaseReady, nil
	})
	if err == nil {
		_, err = ctl.Mounts(ctx, sb, []disks.Volume{{Disk: s.Disk, Path: "/data"}})
	}
	if err != nil {
		return err
	}
	fmt.Println("mounted")
	return <-ended
}

// TestKillsLoseNoWrite kills the server while it makes, formats, attaches and
// mounts a disk, then the disk daemon while a sandbox writes, and then restarts the
// server under the running sandbox. Every file that was acknowledged is there.
func TestKillsLoseNoWrite(t *testing.T) {
	n := newNode(t)
	n.stop()
	d := api_disk.NewDisk()
	d.Project, d.Name, d.Spec.SizeBytes = n.project, "data", size
	if err := entity.Create(t.Context(), n.store, d); err != nil {
		t.Fatal(err)
	}
	sb := n.sandbox()
	spec, err := json.Marshal(serverSpec{
		URL: n.url, StateDir: n.Instance.StateDir, RunDir: filepath.Dir(n.Instance.RunDir), Node: n.id, Sandbox: sb.GetID(), Disk: d.GetID(),
	})
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(1, 13))
	for kill, mounted := 0, false; kill < 8 && !mounted; kill++ {
		mounted = n.killedServer(string(spec), time.Duration(rng.IntN(300*(kill+1)))*time.Millisecond)
		t.Logf("server %d was killed; it had mounted the disk: %v", kill, mounted)
	}

	n.start()
	var mounts []execution.Mount
	wait.NoError(t, "the disk is mounted", func() (err error) {
		mounts, err = n.ctl.Mounts(t.Context(), sb, []disks.Volume{{Disk: d.GetID(), Path: "/data"}})
		return err
	}, wait.Within(time.Minute))
	n.ensure(sb, mounts)
	n.guest(sb, "put", "/data/first", "before the daemon was killed")
	p, err := proc.Find(serverdisks.Record(n.Instance.Socket("lsvd")))
	if err != nil || p == nil {
		t.Fatalf("the disk daemon: %v, %v", p, err)
	}
	if err := unix.Kill(p.PID(), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	n.guest(sb, "put", "/data/second", "after it")
	n.stop()
	n.Restart(t)
	n.guest(sb, "put", "/data/third", "without a server")
	n.start()
	n.guest(sb, "put", "/data/fourth", "with the next server")
	n.end(sb)
	n.detached("data")

	next := n.run(disks.Volume{Disk: d.GetID(), Path: "/data"})
	for file, want := range map[string]string{
		"first": "before the daemon was killed", "second": "after it", "third": "without a server", "fourth": "with the next server",
	} {
		if got := n.guest(next, "read", "/data/"+file); got != want {
			t.Errorf("%s has %q, not %q", file, got, want)
		}
	}
	n.end(next)
	n.detached("data")
	n.delete("data")
}

// TestLostDevice kills the disk daemon and its holder at once, which ends the block device that a sandbox uses. The
// sandbox cannot sync what it writes, its mount is marked, and the next sandbox has what this one had synced.
func TestLostDevice(t *testing.T) {
	n := newNode(t)
	n.create("data")
	d := n.detached("data")
	one := n.run(disks.Volume{Disk: d.GetID(), Path: "/data"})
	one.Status.Phase = sandbox.SandboxPhaseRunning
	if err := entity.UpdateStatus(t.Context(), n.store, one); err != nil {
		t.Fatal(err)
	}
	n.guest(one, "put", "/data/file", "kept")
	attachtest.EndDevices(t, n.Instance)
	if _, ok := n.Env().Try(t, string(one.ID), execution.ExecSpec{Command: []string{"/bin/guest", "put", "/data/late", "lost"}}); ok {
		t.Error("a file that the disk does not have is synced")
	}
	wait.For(t, "the mount is lost", func() bool {
		m, err := disks.Lost(t.Context(), n.store, one.GetID())
		return err == nil && m != nil && m.Spec.Path == "/data"
	}, wait.Within(2*time.Minute), wait.State(func() any { return n.get("data").Status }))
	if _, err := n.ctl.Mounts(t.Context(), one, []disks.Volume{{Disk: d.GetID(), Path: "/data"}}); err != nil { // as it is resumed
		t.Fatal(err)
	}
	if m, err := disks.Lost(t.Context(), n.store, one.GetID()); m != nil || err != nil {
		t.Errorf("a sandbox that gets its mount again: %+v, %v", m, err)
	}
	n.end(one)

	two := n.run(disks.Volume{Disk: d.GetID(), Path: "/data"})
	if got := n.guest(two, "read", "/data/file"); got != "kept" {
		t.Errorf("the next sandbox reads %q", got)
	}
	if m, err := disks.Lost(t.Context(), n.store, two.GetID()); m != nil || err != nil {
		t.Errorf("its mount: %+v, %v", m, err)
	}
	n.end(two)
	n.detached("data")
	n.delete("data")
}

// TestDeleteOfAnOpenVolume: a disk daemon that was killed has left a volume open, and the next daemon was told that the
// disk is detached before it had opened it again. The disk can be deleted all the same, also if its log or its data is
// lost.
func TestDeleteOfAnOpenVolume(t *testing.T) {
	n := newNode(t)
	st, url, err := host.OpenStore(t.Context(), n.ctl.DefaultStore)
	if err != nil {
		t.Fatal(err)
	}
	state, err := host.Open(n.Instance.State("lsvd"))
	if err != nil {
		t.Fatal(err)
	}
	for what, lose := range map[string]func(volume string) error{
		"nothing": func(string) error { return nil },
		"the log": func(volume string) error {
			id, err := lsvd.ParseID(volume)
			if err != nil {
				return err
			}
			return os.RemoveAll(state.LogDir(id))
		},
		"the data": func(volume string) error {
			for info, err := range st.List(t.Context(), "objects/"+volume+"/data/") {
				if err == nil {
					err = st.Delete(t.Context(), info.Key)
				}
				if err != nil {
					return err
				}
			}
			return nil
		},
	} {
		n.create("data")
		d := n.detached("data")
		v, err := state.Open(t.Context(), st, host.Spec{Store: url, Volume: d.Status.Volume})
		if err == nil {
			err = v.WriteAt(t.Context(), make([]byte, lsvd.BlockSize), 0, 0)
		}
		if err != nil {
			t.Fatal(err)
		}
		ended, end := context.WithCancel(t.Context())
		end()
		if err := v.Close(ended); err == nil {
			t.Fatal("it was closed clean")
		}
		if err := lose(d.Status.Volume); err != nil {
			t.Fatalf("lose %s: %v", what, err)
		}
		n.delete("data")
	}
}

// killedServer runs a server that is killed after a time, or soon after it has
// mounted the disk, which it then reports.
func (n *node) killedServer(spec string, after time.Duration) (mounted bool) {
	n.t.Helper()
	cmd := exec.Command(attachtest.Executable(n.t))
	cmd.Env = append(os.Environ(), serverEnv+"="+spec)
	cmd.Stderr = n.t.Output()
	out, err := cmd.StdoutPipe()
	if err != nil {
		n.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		n.t.Fatal(err)
	}
	said := make(chan struct{})
	go func() {
		if bufio.NewScanner(out).Scan() {
			close(said)
		}
	}()
	select {
	case <-said:
		mounted = true
	case <-time.After(after): // the moment is random
	}
	if err := cmd.Process.Kill(); err != nil {
		n.t.Error(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	wait.Receive(n.t, "the end of the server", ended)
	return mounted
}
