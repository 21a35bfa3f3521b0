package daemon_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"miren.dev/runtime/lsvd"
	"miren.dev/runtime/lsvd/catalog"
	"miren.dev/runtime/lsvd/frontend/loop"
	"miren.dev/runtime/lsvd/node/daemon"
	"miren.dev/runtime/lsvd/node/host"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/testsupport/wait"
)

// TestRefusedDiskFailsItsUsers kills the daemon and has the next one be refused
// the disk, for a reason that waiting does not mend. Users of the block device
// wait for RefusedTimeout, then they get I/O errors.
func TestRefusedDiskFailsItsUsers(t *testing.T) {
	const timeout = 3 * time.Second
	for _, c := range []struct {
		name   string
		refuse func(t *testing.T, m *machine, store string)
		class  errs.Class
	}{
		{"damaged-manifest", func(t *testing.T, _ *machine, store string) {
			if err := os.WriteFile(filepath.Join(store, "manifests", volumeIn(t, store).String(), "volume"), []byte("garbage"), 0o600); err != nil {
				t.Fatal(err)
			}
		}, errs.Corrupt},
		{"lost-log", func(t *testing.T, m *machine, store string) {
			log := filepath.Join(m.dir, "state", "volumes", volumeIn(t, store).String(), "log")
			if err := os.RemoveAll(log); err != nil {
				t.Fatal(err)
			}
		}, errs.FailedPrecondition},
		{"open-elsewhere", func(t *testing.T, _ *machine, store string) {
			takeOver(t, store)
		}, errs.FailedPrecondition},
		{"log-in-use", func(t *testing.T, m *machine, store string) {
			state, err := host.Open(filepath.Join(m.dir, "state"))
			if err != nil {
				t.Fatal(err)
			}
			open(t, state, store, false)
		}, errs.Conflict},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := newMachine(t, time.Minute)
			store := t.TempDir()
			create(t, store)
			p := m.start(t, store)
			device := wait.Receive(t, "the device", p.device)
			if device == "" {
				t.Fatal("the volume was not attached")
			}
			u := use(t, device)
			u.goesOn(t, "before the daemon is killed")
			p.end(t, syscall.SIGKILL)
			c.refuse(t, m, store)

			began := time.Now()
			d := m.run(t, daemon.Config{RefusedTimeout: timeout})
			wait.For(t, "the disk is refused while its users wait", func() bool {
				i, err := d.Get("data", "")
				if err != nil {
					t.Fatal(err)
				}
				return i.State == daemon.Failed && errs.Is(i.Err, c.class) && m.claimed(t)
			})
			err := wait.Receive(t, "the end of the user", u.done)
			if !errors.Is(err, syscall.EIO) {
				t.Errorf("the user of the device ended with %v, not an I/O error", err)
			}
			if took := time.Since(began); took < timeout {
				t.Errorf("the user of the device failed after %v, before the %v that it is to wait", took, timeout)
			}
			wait.For(t, "no device is left on the machine", func() bool {
				left, err := loop.List(m.owner)
				if err != nil {
					t.Fatal(err)
				}
				return len(left) == 0
			})
			if i, err := d.Get("data", ""); err != nil || i.State != daemon.Failed {
				t.Errorf("the disk is %s (%v), it should still be listed with the reason", i.State, err)
			}
			if err := d.With("data", "", func(x *host.Disk) error { return x.Snapshot(t.Context(), "snap") }); !errs.Is(err, errs.FailedPrecondition) {
				t.Errorf("a snapshot: %v", err)
			}
		})
	}
}

// TestTakenOverDiskIsAttachedAgain: a disk that another machine has taken over has failed, also when that machine has
// it no more; once it is detached, it is attached again with what the other machine wrote.
func TestTakenOverDiskIsAttachedAgain(t *testing.T) {
	m, url := newMachine(t, time.Minute), t.TempDir()
	create(t, url)
	d := m.run(t, daemon.Config{})
	request := daemon.Request{Spec: daemon.Spec{Store: url}, Volume: "data"}
	if _, err := d.Attach(t.Context(), request); err != nil {
		t.Fatal(err)
	}
	at := func(f func(x *host.Disk, b []byte) error) []byte {
		t.Helper()
		b := make([]byte, lsvd.BlockSize)
		if err := d.With("data", "", func(x *host.Disk) error { return f(x, b) }); err != nil {
			t.Fatal(err)
		}
		return b
	}
	at(func(x *host.Disk, b []byte) error { return x.WriteAt(t.Context(), b, 0, lsvd.FUA) }) // in the log only
	t.Run("elsewhere", func(t *testing.T) { takeOver(t, url) })
	if err := d.With("data", "", func(x *host.Disk) error { return x.Snapshot(t.Context(), "snap") }); !errs.Is(err, errs.Conflict) {
		t.Errorf("a snapshot of what another machine has taken over: %v", err)
	}
	if i, err := d.Attach(t.Context(), request); err != nil || i.State != daemon.Failed || i.Size == 0 {
		t.Errorf("it is %s with %d bytes, %v", i.State, i.Size, err)
	}
	if _, err := d.Detach(t.Context(), "data", "", false); !errs.Is(err, errs.Conflict) {
		t.Errorf("its detachment: %v", err)
	}
	if i, err := d.Attach(t.Context(), request); err != nil || i.State != daemon.Open {
		t.Fatalf("it is %s, %v", i.State, err)
	}
	if b := at(func(x *host.Disk, b []byte) error { return x.ReadAt(t.Context(), b, 0) }); b[0] != 1 {
		t.Errorf("it has %d, not what the other machine wrote", b[0])
	}
	if _, err := d.Detach(t.Context(), "data", "", false); err != nil {
		t.Error(err)
	}
}

// create makes the empty volume "data" in a store.
func create(t *testing.T, url string) {
	t.Helper()
	st, _, err := host.OpenStore(t.Context(), url)
	if err == nil {
		_, err = catalog.Create(t.Context(), st, "data", diskBlocks*lsvd.BlockSize, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func volumeIn(t *testing.T, url string) lsvd.ID {
	t.Helper()
	st, _, err := host.OpenStore(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	v, err := catalog.Find(t.Context(), st, "data")
	if err != nil {
		t.Fatal(err)
	}
	return v.ID
}

// takeOver opens the volume "data" on another machine and writes to it.
func takeOver(t *testing.T, url string) {
	t.Helper()
	other, err := host.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	d := open(t, other, url, true)
	if err := d.WriteAt(t.Context(), bytes.Repeat([]byte{1}, lsvd.BlockSize), 0, lsvd.FUA); err != nil {
		t.Fatal(err)
	}
}

// open opens the volume "data" until the test ends.
func open(t *testing.T, state *host.State, url string, takeOver bool) *host.Disk {
	t.Helper()
	st, url, err := host.OpenStore(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	d, err := state.Open(t.Context(), st, host.Spec{Store: url, Volume: "data", TakeOver: takeOver})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(context.Background()); err != nil {
			t.Log(err) // its owner may have changed
		}
	})
	return d
}
