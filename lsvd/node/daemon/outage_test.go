package daemon_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/lsvd"
	"miren.dev/runtime/lsvd/catalog"
	"miren.dev/runtime/lsvd/frontend/loop"
	"miren.dev/runtime/lsvd/node/daemon"
	"miren.dev/runtime/lsvd/node/host"
	"miren.dev/runtime/lsvd/store/s3/s3test"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/testsupport/wait"
)

const diskBlocks = 2048

// outage is a store whose server can be cut off.
type outage struct {
	url   string
	proxy *s3test.Proxy
}

// newOutage starts a store with the empty volume "data".
func newOutage(t *testing.T) *outage {
	t.Helper()
	server := s3test.Start(t, "versitygw")
	o := &outage{proxy: s3test.NewProxy(t, server.URL)}
	o.url = fmt.Sprintf("s3://bucket/disks?endpoint=%s&credentials=%s&timeout=2s", o.proxy.URL, server.Credentials)
	st, _, err := host.OpenStore(t.Context(), o.url)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := catalog.Create(t.Context(), st, "data", diskBlocks*lsvd.BlockSize, nil); err != nil {
		t.Fatal(err)
	}
	return o
}

func (o *outage) begin() {
	o.proxy.SetHook(func(s3test.Request) s3test.Fault { return s3test.Fault{Reset: true} })
}

func (o *outage) end() { o.proxy.SetHook(nil) }

// user writes to a device past the page cache and compares what it reads with
// its model, until it is stopped or something fails.
type user struct {
	ops  atomic.Int64
	quit chan struct{}
	done chan error
}

func use(t *testing.T, device string) *user {
	t.Helper()
	fd, err := unix.Open(device, unix.O_RDWR|unix.O_DIRECT|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	u := &user{quit: make(chan struct{}), done: make(chan error, 1)}
	go func() {
		defer unix.Close(fd)
		u.done <- u.run(fd)
	}()
	return u
}

func (u *user) run(fd int) error {
	p, err := unix.Mmap(-1, 0, lsvd.BlockSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return err
	}
	defer unix.Munmap(p)
	var model [diskBlocks]uint64
	rng := rand.New(rand.NewPCG(1, 16))
	for n := uint64(1); ; n++ {
		select {
		case <-u.quit:
			return nil
		default:
		}
		i := rng.IntN(diskBlocks)
		fill(p, n)
		if _, err := unix.Pwrite(fd, p, int64(i)*lsvd.BlockSize); err != nil {
			return fmt.Errorf("write %d: %w", n, err)
		}
		model[i] = n
		if n%4 == 0 {
			if err := unix.Fsync(fd); err != nil {
				return fmt.Errorf("sync %d: %w", n, err)
			}
		}
		i = rng.IntN(diskBlocks)
		if _, err := unix.Pread(fd, p, int64(i)*lsvd.BlockSize); err != nil {
			return fmt.Errorf("read of block %d: %w", i, err)
		}
		want := make([]byte, lsvd.BlockSize)
		if fill(want, model[i]); !bytes.Equal(p, want) {
			return fmt.Errorf("block %d has stamp %d, not %d", i, binary.LittleEndian.Uint64(p), model[i])
		}
		u.ops.Add(1)
	}
}

// fill makes the content of a block of its stamp.
func fill(p []byte, stamp uint64) {
	for i := 0; i < len(p); i += 8 {
		binary.LittleEndian.PutUint64(p[i:], stamp)
	}
}

// goesOn waits until the user has done more.
func (u *user) goesOn(t *testing.T, what string) {
	t.Helper()
	least := u.ops.Load() + 50
	wait.For(t, "operations "+what, func() bool {
		select {
		case err := <-u.done:
			t.Fatalf("the user of the device failed %s: %v", what, err)
		default:
		}
		return u.ops.Load() >= least
	})
}

// inOutage starts a daemon with an attached disk that is in use, and begins an
// outage of its store.
func (m *machine) inOutage(t *testing.T) (*outage, *process, string, *user) {
	t.Helper()
	store := newOutage(t)
	p := m.start(t, store.url)
	device := wait.Receive(t, "the device", p.device)
	if device == "" {
		t.Fatal("the volume was not attached")
	}
	u := use(t, device)
	u.goesOn(t, "before the outage")
	store.begin()
	return store, p, device, u
}

// TestRestartInAnOutage kills the daemon while its store does not answer, for
// longer than the holder waits for a daemon. The next daemon has the device at
// once and opens the disk when the store is back: its users wait and see no
// error. With LSVD_OUTAGE the outage is as long, and the holder waits as long as
// it does for users.
func TestRestartInAnOutage(t *testing.T) {
	patience, length := 3*time.Second, 8*time.Second
	if s := os.Getenv("LSVD_OUTAGE"); s != "" {
		var err error
		if length, err = time.ParseDuration(s); err != nil {
			t.Fatal(err)
		}
		patience = 0 // the default
	}
	m := newMachine(t, patience)
	store, p, _, u := m.inOutage(t)
	began := time.Now()
	u.goesOn(t, "in the outage")
	// Also killed in the midst of its start, or while it waits for the store.
	rng := rand.New(rand.NewPCG(2, 16))
	for range 3 {
		p.end(t, syscall.SIGKILL)
		p = m.start(t, "")
		moment := time.Duration(rng.IntN(150)) * time.Millisecond
		select {
		case <-time.After(moment):
		case err := <-u.done:
			t.Fatalf("the user of the device failed: %v", err)
		}
		p.end(t, syscall.SIGKILL)
		p = m.start(t, "")
		wait.For(t, "the daemon has the device", func() bool { return m.claimed(t) })
	}
	select {
	case <-time.After(time.Until(began.Add(length))): // the outage is what is tested
	case err := <-u.done:
		t.Fatalf("the user of the device failed after %v: %v", time.Since(began), err)
	}
	store.end()
	u.goesOn(t, "after the outage")
	if !strings.Contains(p.messages(t), "disk is attached again") {
		t.Error("another daemon serves the disk")
	}
	close(u.quit)
	if err := wait.Receive(t, "the end of the user", u.done); err != nil {
		t.Fatal(err)
	}
}

// TestDetachInAnOutage detaches a disk that a restarted daemon cannot open: its
// device waits, so it is refused; forced, its users get errors at once.
func TestDetachInAnOutage(t *testing.T) {
	m := newMachine(t, time.Minute)
	_, p, device, u := m.inOutage(t)
	p.end(t, syscall.SIGKILL)

	d := m.run(t, daemon.Config{})
	wait.For(t, "the daemon has the device", func() bool { return m.claimed(t) })
	if devices := d.BlockDevices(); len(devices) != 1 || !strings.HasSuffix(devices[0], device) {
		t.Errorf("the devices are %v, not %s", devices, device)
	}
	if _, err := d.Detach(t.Context(), "data", "", false); !errs.Is(err, errs.FailedPrecondition) || errs.HintOf(err) == "" {
		t.Errorf("detach of a device that users wait for: %v", err)
	}
	select {
	case err := <-u.done:
		t.Fatalf("the user of the device failed: %v", err)
	default:
	}
	if _, err := d.Detach(t.Context(), "data", "", true); err != nil {
		t.Fatal(err)
	}
	if err := wait.Receive(t, "the end of the user", u.done); err == nil {
		t.Error("the user of a device that was taken away saw no error")
	}
	wait.For(t, "nothing is left on the machine", func() bool {
		left, err := loop.List(m.owner)
		if err != nil {
			t.Fatal(err)
		}
		return len(left) == 0 && len(m.entries(t, t.Context())) == 0
	})
}

// TestRefusedDetachOpensTheDisk: a detach that is refused, since users of the device
// wait, does not end the attempts to open the disk.
func TestRefusedDetachOpensTheDisk(t *testing.T) {
	m := newMachine(t, time.Minute)
	store, p, _, u := m.inOutage(t)
	p.end(t, syscall.SIGKILL)

	d := m.run(t, daemon.Config{})
	wait.For(t, "the daemon has the device", func() bool { return m.claimed(t) })
	for range 3 {
		if _, err := d.Detach(t.Context(), "data", "", false); !errs.Is(err, errs.FailedPrecondition) {
			t.Errorf("detach of a device that users wait for: %v", err)
		}
	}
	store.end()
	u.goesOn(t, "after the outage")
	close(u.quit)
	if err := wait.Receive(t, "the end of the user", u.done); err != nil {
		t.Fatal(err)
	}
}
