package lsvd_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/testsupport/need"
)

// image makes a sparse image: data, a hole, data, zeros, and an end that is not
// a whole block.
func image(t *testing.T, file string) []byte {
	t.Helper()
	b := make([]byte, 24<<20+1000)
	copy(b[4096:], random(t, file, 3<<20+777))
	copy(b[20<<20:], random(t, file, 1<<20))
	copy(b[24<<20:], random(t, file, 1000))
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(int64(len(b))); err != nil {
		t.Fatal(err)
	}
	for _, r := range [][2]int{{4096, 4 << 20}, {20 << 20, 22 << 20}, {24 << 20, len(b)}} {
		if _, err := f.WriteAt(b[r[0]:r[1]], int64(r[0])); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

func same(t *testing.T, file string, want []byte) {
	t.Helper()
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if len(got) < len(want) || !bytes.Equal(got[:len(want)], want) || bytes.Trim(got[len(want):], "\x00") != nil && len(bytes.Trim(got[len(want):], "\x00")) > 0 {
		t.Errorf("%s differs from what was imported (%d and %d bytes)", file, len(got), len(want))
	}
}

func TestImportExport(t *testing.T) {
	dir := newState(t)
	file := func(name string) string { return filepath.Join(dir, name) }
	want := image(t, file("image"))
	out := ok(t, "import", file("image"), "data", "--json")
	lines := strings.Split(strings.TrimSpace(out), "\n")
	res := decode[struct {
		Event       string
		StoredBytes int64 `json:"stored_bytes"`
		SizeBytes   int64 `json:"size_bytes"`
	}](t, lines[len(lines)-1])
	if res.Event != "result" || res.SizeBytes != 24<<20+4096 || res.StoredBytes > 6<<20 {
		t.Errorf("import: %+v", res)
	}
	ok(t, "export", "data", file("back"))
	same(t, file("back"), want)
	if st, err := os.Stat(file("back")); err != nil || st.Size() != 24<<20+4096 {
		t.Errorf("%v %v", st, err)
	}
	if blocks := allocated(t, file("back")); blocks > 8<<20 {
		t.Errorf("the exported image takes %d bytes", blocks)
	}
	if r := run(t, "export", "data", "-"); r.code != 0 {
		t.Errorf("export to standard output: %s", r.err)
	} else if err := os.WriteFile(file("stream"), []byte(r.out), 0o600); err == nil {
		same(t, file("stream"), want)
	}
	fails(t, exit.Failed, []string{"export", "data", file("back")}, "exists", "--force")
	fails(t, exit.Failed, []string{"export", "data@monday", file("x")}, `no snapshot "monday"`)
	fails(t, exit.Failed, []string{"import", file("image"), "data"}, `"data" exists`)
	fails(t, exit.Failed, []string{"import", file("image"), "small", "--size", "1M"}, "does not fit")
	fails(t, exit.Failed, []string{"import", file("none"), "x"}, "no such file")
	fails(t, exit.Usage, []string{"import", "-", "x"}, "--size")
	key := file("key")
	ok(t, "import", file("image"), "secret", "--encrypt", "--key-file", key, "--size", "64M")
	fails(t, exit.Failed, []string{"export", "secret", file("x")}, "--key-file")
	ok(t, "export", "secret", file("secret.raw"), "--key-file", key)
	same(t, file("secret.raw"), want)
	if list := decode[[]volume](t, ok(t, "list", "--json")); len(list) != 2 {
		t.Errorf("something is left: %+v", list)
	}
	objects(t, filepath.Join(dir, "state", "lsvd", "store"), true)
	need.Tools(t, "qemu-img")
	ok(t, "export", "data", file("data.qcow2"))
	ok(t, "import", file("data.qcow2"), "again")
	ok(t, "export", "again", file("again"))
	same(t, file("again"), want)
	if out, err := exec.Command("qemu-img", "create", "-f", "qcow2", "-b", file("data.qcow2"), "-F", "qcow2", file("over.qcow2")).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	fails(t, exit.Failed, []string{"import", file("over.qcow2"), "x"}, "needs another file")
	if err := os.WriteFile(file("bad.qcow2"), []byte("QFI\xfbnonsense"), 0o600); err != nil {
		t.Fatal(err)
	}
	fails(t, exit.Failed, []string{"import", file("bad.qcow2"), "x"}, "qemu-img")
	ok(t, "delete", "data", "-y")
	ok(t, "delete", "secret", "-y")
	ok(t, "delete", "again", "-y")
	objects(t, filepath.Join(dir, "state", "lsvd", "store"), false)
}

func allocated(t *testing.T, file string) int64 {
	t.Helper()
	out, err := exec.Command("stat", "-c", "%b", file).Output()
	if err != nil {
		t.Fatal(err)
	}
	n := int64(0)
	for _, c := range strings.TrimSpace(string(out)) {
		n = n*10 + int64(c-'0')
	}
	return n * 512
}

// objects reports whether a store has objects.
func objects(t *testing.T, dir string, want bool) {
	t.Helper()
	var found []string
	err := filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		// Objects that a killed daemon was writing are removed later.
		if err == nil && !e.IsDir() && e.Name() != ".lock" && filepath.Base(filepath.Dir(path)) != ".tmp" {
			found = append(found, path)
		}
		return err
	})
	if err != nil || (len(found) > 0) != want {
		t.Errorf("in the store: %v %v", found, err)
	}
}

// TestSnapshots walks through snapshots and clones, with the volume closed and
// attached.
func TestSnapshots(t *testing.T) {
	dir := withDaemon(t)
	file := func(name string) string { return filepath.Join(dir, name) }
	want := image(t, file("image"))
	ok(t, "import", file("image"), "data", "--size", "32M")
	ok(t, "snapshot", "create", "data@one")
	ok(t, "serve", "data")
	ok(t, "snapshot", "create", "data@two")
	fails(t, exit.Failed, []string{"snapshot", "create", "data@one"}, "exists")
	fails(t, exit.Usage, []string{"snapshot", "create", "data"}, "data@NAME")
	fails(t, exit.Failed, []string{"snapshot", "create", "data@.x"}, "letters")
	if out := ok(t, "snapshot", "list", "data"); !strings.HasPrefix(out, "data@one\t32 MiB\t") || strings.Count(out, "\n") != 2 {
		t.Errorf("list: %s", out)
	}
	ok(t, "clone", "data@one", "first")
	ok(t, "clone", "data", "second") // attached
	ok(t, "clone", "first", "third") // closed
	ok(t, "serve", "second")
	ok(t, "export", "second", file("second")) // attached
	same(t, file("second"), want)
	ok(t, "resize", "data", "64M")
	ok(t, "resize", "first", "1G")
	fails(t, exit.Failed, []string{"resize", "data", "48M"}, "cannot shrink")
	ok(t, "gc", "data", "first", "--ratio", "1") // attached and not
	ok(t, "detach", "data")
	fails(t, exit.Failed, []string{"delete", "data", "-y"}, "2 snapshots")
	fails(t, exit.Failed, []string{"snapshot", "delete", "data@on", "-y"}, `did you mean "one"`)
	ok(t, "snapshot", "delete", "data@one", "-y")
	ok(t, "snapshot", "delete", "data@two", "-y")
	ok(t, "delete", "data", "-y")
	ok(t, "gc")
	for _, v := range []string{"first", "third"} {
		ok(t, "check", v)
		ok(t, "export", v, file(v))
		same(t, file(v), want)
		if out := ok(t, "dump", v, "--json"); !strings.Contains(out, `"segment_table"`) {
			t.Errorf("dump: %s", out)
		}
		ok(t, "dump", v)
		ok(t, "delete", v, "-y")
	}
	if out := ok(t, "dump", "second", "--log", "--json"); !strings.Contains(out, `"valid": true`) {
		t.Errorf("dump --log: %s", out)
	}
	ok(t, "detach", "second")
	ok(t, "delete", "second", "-y")
	objects(t, filepath.Join(dir, "state", "lsvd", "store"), false)
}

func TestBench(t *testing.T) {
	dir := newState(t)
	out := decode[struct {
		Tests []struct {
			Test string
			Ops  uint64  `json:"operations"`
			P99  float64 `json:"p99_us"`
		}
	}](t, ok(t, "bench", "--time", "50ms", "--size", "16M", "--json"))
	if len(out.Tests) != 7 {
		t.Fatalf("%+v", out)
	}
	for _, x := range out.Tests {
		if x.Ops == 0 || x.P99 == 0 {
			t.Errorf("%+v", x)
		}
	}
	objects(t, filepath.Join(dir, "state", "lsvd", "store"), false)
	ok(t, "create", "data", "--size", "16M")
	fails(t, exit.Failed, []string{"bench", "data", "--tests", "randwrite"}, "--overwrite")
	fails(t, exit.Usage, []string{"bench", "--tests", "randwriet"}, "randwrite")
	ok(t, "bench", "data", "--time", "20ms", "--tests", "randread")
	ok(t, "bench", "data", "--time", "20ms", "--overwrite")
}
