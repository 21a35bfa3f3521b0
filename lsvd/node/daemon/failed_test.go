package daemon_test

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"miren.dev/runtime/lsvd"
	"miren.dev/runtime/lsvd/node/daemon"
	"miren.dev/runtime/lsvd/node/host"
	"miren.dev/runtime/lsvd/vfs"
	"miren.dev/runtime/lsvd/vfs/vfssim"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/testsupport/wait"
)

// TestFailedDiskOpensAgain has the sync of a log fail. The disk is opened again by itself,
// with all that was acknowledged, and has sent it to the store before it is used. If the
// log has lost something, it stays failed.
func TestFailedDiskOpensAgain(t *testing.T) {
	for name, lose := range map[string]bool{"whole log": false, "lost tail": true} {
		t.Run(name, func(t *testing.T) {
			dir, url := t.TempDir(), t.TempDir()
			create(t, url)
			log := vfssim.New()
			var broken atomic.Bool
			log.FailSync = func(string) error {
				if broken.Load() {
					return errors.New("the disk of the log is broken")
				}
				return nil
			}
			ctx, d := t.Context(), runOn(t, dir, func(string) (vfs.FS, error) {
				if broken.Swap(false) && lose {
					log.PowerLoss(rand.New(rand.NewPCG(1, 1)))
				}
				return log, nil
			})
			if _, err := d.Attach(ctx, daemon.Request{Spec: daemon.Spec{Store: url}, Volume: "data"}); err != nil {
				t.Fatal(err)
			}
			data := bytes.Repeat([]byte{7}, 8*lsvd.BlockSize)
			with := func(f func(x *host.Disk) error) error { return d.With("data", "", f) }
			if err := with(func(x *host.Disk) error { return x.WriteAt(ctx, data[:lsvd.BlockSize], 0, lsvd.FUA) }); err != nil {
				t.Fatal(err)
			}
			if err := with(func(x *host.Disk) error { return x.WriteAt(ctx, data, 0, 0) }); err != nil {
				t.Fatal(err)
			}
			broken.Store(true)
			if err := with(func(x *host.Disk) error { return x.Flush(ctx) }); err == nil {
				t.Fatal("the sync did not fail")
			}
			if lose {
				wait.For(t, "the disk is refused", func() bool {
					i, err := d.Get("data", "")
					return err == nil && i.State == daemon.Failed && errs.Is(i.Err, errs.FailedPrecondition)
				})
				return
			}
			wait.For(t, "the disk is open again", func() bool {
				i, err := d.Get("data", "")
				return err == nil && i.State == daemon.Open && i.Recovery.Last == 2
			})
			err := with(func(x *host.Disk) error {
				got := make([]byte, len(data))
				if err := x.ReadAt(ctx, got, 0); err != nil || !bytes.Equal(got, data) {
					t.Errorf("what was acknowledged is not there: %v", err)
				}
				if n := x.Stats().UnsentBytes; n != 0 {
					t.Errorf("%d bytes are only in the log that has failed", n)
				}
				return x.WriteAt(ctx, data, 0, lsvd.FUA)
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
}

// runOn runs a daemon below dir until the test ends, whose logs are where openLog says.
func runOn(t *testing.T, dir string, openLog func(string) (vfs.FS, error)) *daemon.Daemon {
	t.Helper()
	state, err := host.Open(filepath.Join(dir, "state"))
	if err != nil {
		t.Fatal(err)
	}
	state.OpenLog = openLog
	d, err := daemon.New(daemon.Config{State: state, RunDir: filepath.Join(dir, "run"), CloseTimeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := wait.Receive(t, "the end of the daemon", ended); err != nil {
			t.Error(err)
		}
	})
	wait.Receive(t, "the daemon is ready", d.Ready())
	return d
}
