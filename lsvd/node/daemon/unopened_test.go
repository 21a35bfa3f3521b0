package daemon_test

import (
	"bytes"
	"context"
	"testing"
	"time"

	"miren.dev/runtime/lsvd"
	"miren.dev/runtime/lsvd/node/daemon"
	"miren.dev/runtime/lsvd/node/host"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/testsupport/wait"
)

// leaveUnsent runs a daemon that writes a block to the volume, which the store cannot take: an outage begins. The
// daemon ends, and leaves the disk attached.
func (m *machine) leaveUnsent(t *testing.T, store *outage) (content []byte) {
	t.Helper()
	d, end := m.begin(t, daemon.Config{})
	if _, err := d.Attach(t.Context(), daemon.Request{Spec: daemon.Spec{Store: store.url}, Volume: "data"}); err != nil {
		t.Fatal(err)
	}
	store.begin()
	content = bytes.Repeat([]byte{7}, lsvd.BlockSize)
	if err := d.With("data", "", func(x *host.Disk) error { return x.WriteAt(t.Context(), content, 0, lsvd.FUA) }); err != nil {
		t.Fatal(err)
	}
	end()
	return content
}

// cannotOpen waits until a daemon has failed to open the disk.
func cannotOpen(t *testing.T, d *daemon.Daemon) {
	t.Helper()
	wait.For(t, "the disk cannot be opened", func() bool {
		i, err := d.Get("data", "")
		return err == nil && i.State == daemon.Failed
	})
}

// TestUnopenedDiskIsUnavailable: what concerns a disk that its daemon has not opened again yet can be tried again, as
// it can while the store does not answer. A disk that is refused stays so.
func TestUnopenedDiskIsUnavailable(t *testing.T) {
	m, store := newMachine(t, time.Minute), newOutage(t)
	m.leaveUnsent(t, store)
	d := m.run(t, daemon.Config{})
	snapshot := func() error {
		return d.With("data", "", func(x *host.Disk) error { return x.Snapshot(t.Context(), "snap") })
	}
	if err := snapshot(); !errs.Is(err, errs.Unavailable) {
		t.Errorf("a snapshot while the disk is opened: %v", err)
	}
	cannotOpen(t, d)
	if err := snapshot(); !errs.Is(err, errs.Unavailable) {
		t.Errorf("a snapshot in an outage: %v", err)
	}
	if _, err := d.Detach(t.Context(), "data", "", true); err != nil {
		t.Fatal(err)
	}
}

// TestDiskThatIsClosedMeanwhileIsUnavailable: a snapshot of a disk that is closed meanwhile can be tried again.
func TestDiskThatIsClosedMeanwhileIsUnavailable(t *testing.T) {
	m, url := newMachine(t, time.Minute), t.TempDir()
	create(t, url)
	d := m.run(t, daemon.Config{})
	if _, err := d.Attach(t.Context(), daemon.Request{Spec: daemon.Spec{Store: url}, Volume: "data"}); err != nil {
		t.Fatal(err)
	}
	err := d.With("data", "", func(x *host.Disk) error {
		if _, err := d.Detach(t.Context(), "data", "", false); err != nil {
			t.Error(err)
		}
		return x.Snapshot(t.Context(), "snap")
	})
	if !errs.Is(err, errs.Unavailable) {
		t.Error(err)
	}
}

// TestDetachSendsWhatTheLogHas detaches a disk that its daemon has not opened again yet, with
// writes in the log that the store lacks: it sends them and closes the volume, or says that it cannot.
func TestDetachSendsWhatTheLogHas(t *testing.T) {
	for _, test := range []struct {
		name string
		over bool // the outage is over before the disk is detached
		want errs.Class
	}{{"after an outage", true, ""}, {"in an outage", false, errs.Unavailable}} {
		t.Run(test.name, func(t *testing.T) {
			m, store := newMachine(t, time.Minute), newOutage(t)
			content := m.leaveUnsent(t, store)
			d := m.run(t, daemon.Config{})
			cannotOpen(t, d)
			if test.over {
				store.end()
			}
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			if _, err := d.Detach(ctx, "data", "", false); errs.ClassOf(err) != test.want {
				t.Errorf("detach %s: %v", test.name, err)
			}
			if _, err := d.Get("data", ""); !errs.Is(err, errs.NotFound) {
				t.Errorf("the disk is still attached: %v", err)
			}
			store.end()
			if !test.over { // the log has kept it
				if _, err := d.Attach(t.Context(), daemon.Request{Spec: daemon.Spec{Store: store.url}, Volume: "data"}); err != nil {
					t.Fatal(err)
				}
				if _, err := d.Detach(t.Context(), "data", "", false); err != nil {
					t.Fatal(err)
				}
			}
			// Another machine opens a volume only if it was closed.
			elsewhere, err := host.Open(t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			got := make([]byte, lsvd.BlockSize)
			if err := open(t, elsewhere, store.url, false).ReadAt(t.Context(), got, 0); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, content) {
				t.Error("the store lacks the write")
			}
		})
	}
}
