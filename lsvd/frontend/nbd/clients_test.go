package nbd_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/lsvd"
	"miren.dev/runtime/lsvd/fiotest"
	"miren.dev/runtime/lsvd/frontend/nbd"
	"miren.dev/runtime/lsvd/store/storesim"
	"miren.dev/runtime/lsvd/vfs/vfssim"
	"miren.dev/runtime/testsupport/need"
)

var discard = slog.New(slog.DiscardHandler)

// needClients skips a test without the programs of hack/packages.sh's group test.
func needClients(t *testing.T, names ...string) {
	t.Helper()
	need.Tools(t, names...)
}

// runClient runs a client and returns what it printed on its standard output.
func runClient(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := tryClient(t, name, args...)
	if err != nil {
		t.Fatalf("%s %q: %v\n%s", name, args, err, out)
	}
	return out
}

func tryClient(t *testing.T, name string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	// nbdsh takes the first python3, its module is in the distribution's.
	cmd.Env = append(os.Environ(), "PATH=/usr/bin:/bin:"+os.Getenv("PATH"))
	cmd.Dir = t.TempDir()
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return string(out) + stderr.String(), err
	}
	return string(out), nil
}

// nbdsh runs Python with h connected to uri.
func nbdsh(t *testing.T, uri, program string) string {
	t.Helper()
	return runClient(t, "nbdsh", "--base-allocation", "-u", uri, "-c", program)
}

// TestExperimentRequests is experiment 1 of the virtual disk: what each
// request did is still so after kill -9 of the server.
func TestExperimentRequests(t *testing.T) {
	needClients(t, "nbdinfo", "nbdsh")
	s := serving{Dir: t.TempDir(), Size: 64 << 20}
	p := s.start(t)

	var info struct {
		Exports []struct {
			Name      string `json:"export-name"`
			Size      int64  `json:"export-size"`
			Contexts  []string
			CanFlush  bool `json:"can_flush"`
			CanFUA    bool `json:"can_fua"`
			CanTrim   bool `json:"can_trim"`
			CanZero   bool `json:"can_zero"`
			CanMulti  bool `json:"can_multi_conn"`
			ReadOnly  bool `json:"is_read_only"`
			BlockPref int  `json:"block_size_preferred"`
		}
		Structured bool
	}
	text := runClient(t, "nbdinfo", "--json", s.uri())
	if err := json.Unmarshal([]byte(text), &info); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	if len(info.Exports) != 1 || !info.Structured {
		t.Fatalf("nbdinfo: %s", text)
	}
	if e := info.Exports[0]; e.Size != s.Size || !e.CanFlush || !e.CanFUA || !e.CanTrim || !e.CanZero || !e.CanMulti || e.ReadOnly || e.BlockPref != 4096 {
		t.Errorf("nbdinfo: %+v", e)
	}

	nbdsh(t, s.uri(), `
h.pwrite(b"a" * 65536, 1048576)
h.pwrite(b"b" * 65536, 2097152, nbd.CMD_FLAG_FUA)
h.pwrite(b"c" * 100, 5000)
h.flush()
assert h.pread(65536, 1048576) == b"a" * 65536
assert h.pread(65536, 2097152) == b"b" * 65536
assert h.pread(102, 4999) == b"\0" + b"c" * 100 + b"\0"
h.trim(8192, 1048576)
h.zero(8192, 2097152)
h.zero(50, 5000)
`)
	after := `
assert h.pread(65536, 1048576) == b"\0" * 8192 + b"a" * 57344
assert h.pread(65536, 2097152) == b"\0" * 8192 + b"b" * 57344
assert h.pread(100, 5000) == b"\0" * 50 + b"c" * 50
`
	nbdsh(t, s.uri(), after)
	p.kill()
	p = s.start(t)
	nbdsh(t, s.uri(), after)

	type extent struct {
		Offset, Length int64
		Type           int
	}
	var got []extent
	text = runClient(t, "nbdinfo", "--map", "--json", s.uri())
	if err := json.Unmarshal([]byte(text), &got); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	want := []extent{{0, 4096, 3}, {4096, 4096, 0}, {8192, 1<<20 - 8192 + 8192, 3}, {1<<20 + 8192, 57344, 0},
		{1<<20 + 65536, 1<<20 - 65536 + 8192, 3}, {2<<20 + 8192, 57344, 0}, {2<<20 + 65536, s.Size - 2<<20 - 65536, 3}}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("map:\n%v, want\n%v", got, want)
	}
	p.stop()
}

// TestFUA loses power after an acknowledged FUA write, many times: it survives.
func TestFUA(t *testing.T) {
	needClients(t, "nbdsh")
	ctx := t.Context()
	fs, st, id := vfssim.New(), &storesim.Mem{}, lsvd.NewID()
	if err := lsvd.Create(ctx, st, id, 8<<20, nil); err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(4, 5))
	for round := range 5 {
		d, _, err := lsvd.Open(ctx, st, fs, id, lsvd.Options{LogFile: 1 << 20, CutAge: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		uri, stop := serveUnix(t, d)
		check := ""
		if round > 0 {
			check = fmt.Sprintf(`assert h.pread(8192, 40960) == b"%c" * 4096 + b"\0" * 4096, "lost what FUA and flush promised"`, 'a'+round-1)
		}
		nbdsh(t, uri, check+fmt.Sprintf(`
h.pwrite(b"z" * 8192, 40960)
h.pwrite(b"%c" * 4096, 40960, nbd.CMD_FLAG_FUA)
h.zero(4096, 45056)
h.flush()
h.pwrite(b"?" * 4096, 4096)
`, 'a'+round))
		fs.PowerLoss(rng)
		stop()
		gone, cancel := context.WithCancel(ctx)
		cancel()
		d.Close(gone) // its log is dead: only to end its goroutines
	}
}

// serveUnix serves d in this process as "disk".
func serveUnix(t *testing.T, d lsvd.Disk) (uri string, stop func()) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "nbd")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	return "nbd+unix:///disk?socket=" + path, serveOn(t, d, func(ctx context.Context, s *nbd.Server) error { return s.Serve(ctx, l) })
}

func serveOn(t *testing.T, d lsvd.Disk, serve func(context.Context, *nbd.Server) error) (stop func()) {
	t.Helper()
	s := nbd.New(discard)
	if err := s.Add(nbd.Export{Name: "disk", Disk: d}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- serve(ctx, s) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(stop)
	return stop
}

// writeImage makes a sparse image with some data.
func writeImage(t *testing.T, size int64) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "image")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
	rng := rand.NewChaCha8([32]byte{9})
	for _, off := range []int64{0, 3 << 20, 10<<20 + 512, size - 8192} {
		b := make([]byte, min(2<<20+1000, size-off))
		rng.Read(b)
		if _, err := f.WriteAt(b, off); err != nil {
			t.Fatal(err)
		}
	}
	return path
}

// TestExperimentCopy is experiment 2: an image goes in and comes back.
func TestExperimentCopy(t *testing.T) {
	needClients(t, "nbdcopy", "cmp", "qemu-img", "qemu-io")
	s := serving{Dir: t.TempDir(), Size: 64 << 20, CutBytes: 4 << 20, CacheBytes: 8 << 20}
	p := s.start(t)
	image, back := writeImage(t, s.Size), filepath.Join(t.TempDir(), "back")
	runClient(t, "nbdcopy", "--flush", image, s.uri())
	runClient(t, "nbdcopy", s.uri(), back)
	runClient(t, "cmp", image, back)
	runClient(t, "qemu-img", "compare", "-f", "raw", "-F", "raw", image, s.uri())
	p.kill()
	p = s.start(t)
	runClient(t, "qemu-img", "compare", "-f", "raw", "-F", "raw", image, s.uri())
	qcow := filepath.Join(t.TempDir(), "qcow2")
	runClient(t, "qemu-img", "convert", "-f", "raw", "-O", "qcow2", s.uri(), qcow)
	runClient(t, "qemu-img", "compare", image, qcow)
	out := runClient(t, "qemu-io", "-f", "raw", "-c", "write -P 0x5a 1M 64k", "-c", "flush", "-c", "read -P 0x5a 1M 64k",
		"-c", "write -z -u 1M 32k", "-c", "read -P 0 1M 32k", "-c", "read -P 0x5a 1056k 32k", "-c", "discard 1M 64k", "-c", "read -P 0 1M 64k", s.uri())
	if strings.Contains(out, "erification failed") { // it exits with 0 all the same
		t.Error(out)
	}
	p.stop()
}

// TestExperimentVerify is experiment 3: fio verifies what it wrote, while GC
// moves all it can and the cache holds a tenth of the disk. Long with
// LSVD_SOAK set to a duration.
func TestExperimentVerify(t *testing.T) {
	needClients(t, "fio")
	size, load := fiotest.Load(t, "192m")
	s := serving{Dir: t.TempDir(), Size: size,
		LogFile: 4 << 20, CutBytes: 2 << 20, MaxUnsent: 8 << 20, CacheBytes: size / 10, Checkpoint: 1, GCRatio: 1.02}
	p := s.start(t)
	if err := fiotest.NBD(s.uri(), size).Verify(t.Context(), t, "7", load...); err != nil {
		t.Error(err)
	}
	if n := p.stop(); n <= 0 {
		t.Errorf("GC moved %d bytes: the test did not test it", n)
	}
}
