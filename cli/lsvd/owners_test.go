package lsvd_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/lsvd/store/s3/s3test"
	"miren.dev/runtime/testsupport/attachtest"
	"miren.dev/runtime/testsupport/need"
)

// host is a separate machine: its commands and its daemon are processes with
// directories that no other machine has.
type host struct {
	dir   string
	env   []string
	block bool // it can attach block devices
}

// newHost makes a machine that uses a store. At the end of the test it removes
// everything of the machine.
func newHost(t *testing.T, name, store string) *host {
	t.Helper()
	dir, err := os.MkdirTemp("", "rt-lsvd-") // short enough for a socket
	if err != nil {
		t.Fatal(err)
	}
	h := &host{dir: dir, env: append(os.Environ(), "RUNTIME_SERVER=", "RUNTIME_CLUSTER=", "RUNTIME_LSVD_STORE="+store,
		"RUNTIME_STATE_DIR="+filepath.Join(dir, "state"), "RUNTIME_RUN_DIR="+filepath.Join(dir, "run"), "XDG_CONFIG_HOME="+filepath.Join(dir, "config"),
		"GORACE=atexit_sleep_ms=0")} // otherwise every command takes a second longer
	t.Cleanup(func() {
		h.run("detach", "--all", "--force") // the loser's fails, since it has lost the volume
		if r := h.run("daemon", "--stop"); r.code != 0 {
			t.Errorf("stop the daemon of %s: %+v", name, r)
		}
		os.RemoveAll(dir)
	})
	h.block = os.Geteuid() == 0 && attachtest.Missing() == nil
	if !h.block {
		return h
	}
	write(t, h.state("id"), []byte(attachtest.Owner(t, name)+"\n"))
	return h
}

// state is a file of the disks, whose directory is made.
func (h *host) state(name string) string {
	dir := filepath.Join(h.dir, "state", "lsvd")
	os.MkdirAll(dir, 0o700) // the use of the file shows an error
	return filepath.Join(dir, name)
}

func (h *host) run(args ...string) result {
	var r result
	var out, errw bytes.Buffer
	cmd := exec.Command(os.Args[0], append([]string{"lsvd"}, args...)...)
	cmd.Env, cmd.Stdout, cmd.Stderr = h.env, &out, &errw
	if err := cmd.Run(); err != nil {
		r.code = -1
		var e *exec.ExitError
		if errors.As(err, &e) {
			r.code = e.ExitCode()
		}
	}
	r.out, r.err = out.String(), errw.String()
	return r
}

func (h *host) ok(t *testing.T, args ...string) string {
	t.Helper()
	r := h.run(args...)
	if r.code != 0 {
		t.Fatalf("r lsvd %s: exit code %d\n%s%s", strings.Join(args, " "), r.code, r.out, r.err)
	}
	return r.out
}

// nbdsh runs Python with h connected to a disk.
func nbdsh(uri, program string) *exec.Cmd {
	cmd := exec.Command("nbdsh", "-u", uri, "-c", program)
	cmd.Env = append(os.Environ(), "PATH=/usr/bin:/bin:"+os.Getenv("PATH")) // the distribution's Python has its module
	return cmd
}

const (
	ringBlocks = 256 // blocks that a writer writes in turn
	ringHead   = 700 // writes before the other machine starts
)

// ringWriter keeps the data that it finds and then writes stamps (who, count)
// round the disk until a write fails, or until a file stop exists and enough is
// written.
const ringWriter = `
import os, struct
who, found, stop = %d, %q, %q
with open(found, "wb") as f: f.write(h.pread(%d * 4096, 0))
n = 0
try:
  while n < %d or not os.path.exists(stop):
    h.pwrite(struct.pack("<QQ", who, n + 1) * 256, (n + 1) %% %d * 4096)
    n += 1
    if n == %d: print("ahead", flush=True)
  print("stopped", n, flush=True)
except nbd.Error as e:
  print("lost", n, e.errnum, flush=True)
`

// stampRing returns the expected data after a writer's first n writes to the
// data that it found.
func stampRing(image []byte, who, n uint64) {
	for i := n - min(n, ringBlocks-1); i <= n; i++ {
		b := image[i%ringBlocks*4096:][:4096]
		for k := 0; i > 0 && k < len(b); k += 16 {
			binary.LittleEndian.PutUint64(b[k:], who)
			binary.LittleEndian.PutUint64(b[k+8:], i)
		}
	}
}

// ring is one of two machines that use the volume in turn.
type ring struct {
	*host
	who   uint64
	ahead chan struct{}

	device, uri string

	early bool   // another machine took the volume while this one opened it
	acked uint64 // acknowledged writes
	errno int    // of the next write
	err   error
}

// write attaches the volume, even if another machine has it, and writes until
// the volume is lost.
func (r *ring) write(stop string) {
	if r.err = r.open(); r.err != nil || r.early {
		return
	}
	cmd := nbdsh(r.uri, fmt.Sprintf(ringWriter, r.who, r.found(), stop, ringBlocks, 2*ringBlocks, ringBlocks, ringHead))
	var errw bytes.Buffer
	cmd.Stderr = &errw
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		r.err = err
		return
	}
	last := ""
	for s := bufio.NewScanner(out); s.Scan(); {
		if last = s.Text(); last == "ahead" {
			close(r.ahead)
		}
	}
	err = cmd.Wait()
	if n, _ := fmt.Sscanf(last, "stopped %d", &r.acked); n == 1 && err == nil {
		return
	}
	if n, _ := fmt.Sscanf(last, "lost %d %d", &r.acked, &r.errno); n != 2 || err != nil {
		r.err = fmt.Errorf("writer: %q, %w\n%s", last, err, &errw)
	}
}

// open attaches the volume, also as a block device where that works.
func (r *ring) open() error {
	args := []string{"serve", "data", "--take-over"}
	if r.block {
		args[0] = "attach"
	}
	res := r.run(args...)
	if r.early = strings.Contains(res.err, "opened by another process"); r.early {
		return nil
	}
	if res.code != 0 {
		return fmt.Errorf("%s: %s", args, res.err)
	}
	if res := r.run("serve", "data"); res.code != 0 {
		return fmt.Errorf("serve: %s", res.err)
	}
	res = r.run("info", "data", "--json")
	var a attached
	if err := json.Unmarshal([]byte(res.out), &a); err != nil || a.Attached == nil {
		return fmt.Errorf("info: %v, %s%s", err, res.out, res.err)
	}
	for _, f := range a.Attached.Frontends {
		if f.Kind == "nbd" {
			r.uri = f.Address
		} else {
			r.device = f.Address
		}
	}
	return nil
}

func (r *ring) found() string { return filepath.Join(r.dir, "found") }

// TestTwoHosts is the last part of experiment 6: the daemons of two machines
// have one volume, at the same time or one after the other. Exactly one stays;
// the clients of the other get EIO, by NBD and on its block device. What is in
// the store is whole, and is what the winner found and wrote; what it found is
// a prefix of what the other wrote. A loser that only reads notices by itself.
func TestTwoHosts(t *testing.T) {
	need.Tools(t, "nbdsh")
	defer readerLoses(t)() // a while until the loser notices
	for _, kind := range []string{"directory", "minio"} {
		for _, when := range []string{"together", "later"} {
			t.Run(kind+"/"+when, func(t *testing.T) {
				store := t.TempDir()
				if kind != "directory" {
					server := s3test.Start(t, kind)
					store = "s3://bucket/disks?endpoint=" + server.URL + "&credentials=" + server.Credentials
				}
				twoHosts(t, store, when == "together")
			})
		}
	}
}

// readUntilLost reads a block five times a second until that fails.
const readUntilLost = `
import time
began = time.monotonic()
try:
  while time.monotonic() - began < 90:
    h.pread(4096, 0)
    time.sleep(0.2)
  print("read")
except nbd.Error as e:
  print("lost", e.errnum, "after %.1f s" % (time.monotonic() - began))
`

// readerLoses lets one machine take a volume away from another, which then only
// reads. The returned function checks that the reader noticed by itself.
func readerLoses(t *testing.T) (await func()) {
	store := t.TempDir()
	loser, winner := &ring{host: newHost(t, "reader", store)}, &ring{host: newHost(t, "taker", store)}
	loser.ok(t, "create", "data", "--size", "16M")
	for _, r := range []*ring{loser, winner} {
		if err := r.open(); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := nbdsh(winner.uri, `h.pwrite(b"x" * 4096, 0); h.flush()`).CombinedOutput(); err != nil {
		t.Fatalf("write: %v\n%s", err, out)
	}
	said := make(chan string, 1)
	go func() {
		out, err := nbdsh(loser.uri, readUntilLost).CombinedOutput()
		said <- fmt.Sprint(string(out), err)
	}()
	return func() {
		t.Helper()
		out := "nothing for two minutes"
		select {
		case out = <-said:
		case <-time.After(2 * time.Minute):
		}
		t.Logf("the machine that only reads: %s", out)
		if !strings.HasPrefix(out, "lost 5 ") {
			t.Errorf("the machine that only reads ends with %s", out)
			return
		}
		loser.refused(t)
		if a := decode[attached](t, winner.ok(t, "info", "data", "--json")); a.State != "attached" {
			t.Errorf("the winner is %s", a.State)
		}
	}
}

func twoHosts(t *testing.T, store string, together bool) {
	third := newHost(t, "third", store)
	third.ok(t, "create", "data", "--size", "16M")
	rings := []*ring{{host: newHost(t, "first", store), who: 1, ahead: make(chan struct{})},
		{host: newHost(t, "second", store), who: 2, ahead: make(chan struct{})}}
	stop := filepath.Join(third.dir, "stop")
	lost := make(chan *ring, len(rings))
	over, end := context.WithCancel(t.Context())
	defer end()
	var wg sync.WaitGroup
	for i, r := range rings {
		wg.Go(func() {
			if i == 1 && !together {
				select {
				case <-rings[0].ahead:
				case <-over.Done():
					return
				}
			}
			r.write(stop)
			if r.err != nil || r.errno != 0 || r.early {
				lost <- r
			}
		})
	}
	var loser *ring
	select {
	case loser = <-lost:
	case <-time.After(time.Minute):
		t.Error("both have the volume for a minute")
	}
	noticed := time.Now()
	if loser != nil && !loser.early {
		loser.refused(t)
	}
	took := time.Since(noticed)
	write(t, stop, nil)
	end()
	wg.Wait()
	for _, r := range rings {
		t.Logf("machine %d: %d writes, errno %d, %v", r.who, r.acked, r.errno, r.err)
	}
	if t.Failed() {
		return
	}
	winner := rings[2-loser.who]
	if loser.err != nil || winner.err != nil || loser.errno != int(unix.EIO) && !loser.early || winner.errno != 0 || winner.early {
		t.Fatalf("the loser's writer ends with errno %d, %v, the winner's with %d, %v", loser.errno, loser.err, winner.errno, winner.err)
	}
	t.Logf("machine %d won; everything was refused to the other in %v", winner.who, took)
	want, err := os.ReadFile(winner.found())
	if err != nil {
		t.Fatal(err)
	}
	last := uint64(0)
	for b := want; len(b) > 0; b = b[4096:] {
		last = max(last, binary.LittleEndian.Uint64(b[8:]))
	}
	prefix := make([]byte, len(want))
	if stampRing(prefix, loser.who, last); !bytes.Equal(prefix, want) {
		t.Error("the winner found what no number of the loser's writes makes")
	}
	stampRing(want, winner.who, winner.acked)

	winner.ok(t, "detach", "data")
	third.ok(t, "check", "data")
	third.ok(t, "export", "data", filepath.Join(third.dir, "image"))
	got, err := os.ReadFile(filepath.Join(third.dir, "image"))
	if err != nil {
		t.Fatal(err)
	}
	if want = append(want, make([]byte, 16<<20-len(want))...); !bytes.Equal(got, want) {
		t.Error("the disk is not what its winner found and wrote")
	}
}

// refused checks that the machine's daemon reports the volume as lost, and that
// all of its frontends return EIO.
func (r *ring) refused(t *testing.T) {
	t.Helper()
	a := decode[attached](t, r.ok(t, "info", "data", "--json"))
	if a.State != "failed" || !strings.Contains(a.Attached.Message, "opened by another process") {
		t.Errorf("the loser says %+v %+v", a, a.Attached)
	}
	out, err := nbdsh(r.uri, `
for f in (lambda: h.pread(4096, 0), lambda: h.pwrite(b"x" * 4096, 0), h.flush, lambda: h.trim(4096, 0), lambda: h.zero(4096, 0)):
  try:
    f()
    print("done")
  except nbd.Error as e:
    print(e.errnum)
`).CombinedOutput()
	if err != nil || string(out) != strings.Repeat("5\n", 5) {
		t.Errorf("the loser by NBD: %v\n%s", err, out)
	}
	if !r.block {
		return
	}
	f, err := os.OpenFile(r.device, os.O_RDWR|unix.O_DIRECT, 0)
	if err != nil {
		t.Error(err)
		return
	}
	defer f.Close()
	b, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Error(err)
		return
	}
	defer unix.Munmap(b)
	began := time.Now()
	if _, err := f.ReadAt(b, 0); !errors.Is(err, unix.EIO) {
		t.Errorf("read of the loser's %s: %v", r.device, err)
	}
	if _, err := f.WriteAt(b, 0); !errors.Is(err, unix.EIO) {
		t.Errorf("write to the loser's %s: %v", r.device, err)
	}
	if took := time.Since(began); took > time.Second {
		t.Errorf("the loser's %s took %v to refuse", r.device, took)
	}
}
