package baseimage

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/testsupport/need"
	"miren.dev/runtime/testsupport/wait"
)

func TestParseUpdates(t *testing.T) {
	got := parseUpdates([]byte("Reading package lists...\nInst libc6 [2.36-9] (2.36-10 Debian-Security:12/stable-security [amd64]) []\n" +
		"Inst base-files [12] (12.1 Debian:12 [amd64])\nInst libnew (1:3 Debian:12 [all])\nConf libc6 (2.36-10 Debian [amd64])\n"))
	want := []Update{{"base-files", "12", "12.1"}, {"libc6", "2.36-9", "2.36-10"}, {"libnew", "", "1:3"}}
	if !slices.Equal(got, want) {
		t.Errorf("%v", got)
	}
}

func TestRefsFor(t *testing.T) {
	for named, want := range map[string]Ref{
		"debian-bookworm": {Name: "debian", Release: "bookworm"}, "go-cgo-1.26.11": {Name: "go-cgo", Version: "1.26.11", Release: "bookworm"},
		"sandbox-code-interpreter-trixie": {Name: "sandbox", Version: "code-interpreter"}, "ruby-build-3.1": {Name: "ruby-build", Version: "3.1", Release: "bookworm"},
	} {
		if got := refsFor(named, "bookworm"); !slices.Contains(got, want) {
			t.Errorf("%s: %v", named, got)
		}
	}
}

// A round that nothing began leaves the keys of images as they were.
func TestRoundChangesKeys(t *testing.T) {
	s := New(Config{Dir: t.TempDir()})
	key := func(s *Store) string {
		t.Helper()
		r, err := s.debian("")
		if err != nil {
			t.Fatal(err)
		}
		return r.key()
	}
	first := key(s)
	release := strings.Split(must(s.debian(""))(t).dirName(), "-")[1]
	if next := key(s.inRound(release, 1)); next == first || key(s.inRound(release, 0)) != first {
		t.Errorf("keys %s and %s", first, next)
	}
	if err := s.writeRounds(&rounds{Round: map[string]int{release: 1}}); err != nil {
		t.Fatal(err)
	}
	if key(s) != key(s.inRound(release, 1)) {
		t.Error("rounds.json does not count")
	}
}

func must[T any](v T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func TestRemoveReplaced(t *testing.T) {
	s := New(Config{Dir: t.TempDir()})
	now := time.Now()
	for _, name := range []string{"old", "young"} {
		if err := os.MkdirAll(filepath.Join(s.cfg.Dir, name, "blobs"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	err := s.writeRounds(&rounds{Replaced: map[string]time.Time{"old": now.Add(-keepReplaced), "young": now, "gone": now.Add(-keepReplaced)}})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := s.removeReplaced(now); err != nil {
			t.Fatal(err)
		}
	}
	r := must(s.rounds())(t)
	if _, err := os.Stat(filepath.Join(s.cfg.Dir, "old")); err == nil || len(r.Replaced) != 1 || r.Replaced["young"].IsZero() {
		t.Errorf("%v, %v", r.Replaced, err)
	}
	if _, err := os.Stat(filepath.Join(s.cfg.Dir, "young")); err != nil {
		t.Error(err)
	}
}

// mirror is a source of packages whose content the test decides.
type mirror struct{ dir string }

// offer makes the mirror have one package in a version; empty: none.
func (m mirror) offer(t *testing.T, name, version string) {
	t.Helper()
	packages := ""
	if version != "" {
		root := filepath.Join(t.TempDir(), "package")
		if err := os.MkdirAll(filepath.Join(root, "DEBIAN"), 0o755); err != nil {
			t.Fatal(err)
		}
		control := "Package: " + name + "\nVersion: " + version + "\nArchitecture: all\nMaintainer: test <test@example.com>\nDescription: of a test\n"
		file := filepath.Join(m.dir, name+".deb")
		if err := os.WriteFile(filepath.Join(root, "DEBIAN", "control"), []byte(control), 0o644); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.CommandContext(t.Context(), "dpkg-deb", "--root-owner-group", "--build", root, file).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		body := must(os.ReadFile(file))(t)
		packages = fmt.Sprintf("%sFilename: ./%s.deb\nSize: %d\nSHA256: %x\n", control, name, len(body), sha256.Sum256(body))
	}
	release := fmt.Sprintf("Date: %s\nSHA256:\n %x %d Packages\n", time.Now().UTC().Format("Mon, 02 Jan 2006 15:04:05 UTC"), sha256.Sum256([]byte(packages)), len(packages))
	for name, text := range map[string]string{"Packages": packages, "Release": release} {
		if err := os.WriteFile(filepath.Join(m.dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// use makes the packages of the mirror some of the host's.
func (m mirror) use(own *host) {
	changed := *own
	changed.sources = append(slices.Clone(own.sources), "deb [trusted=yes] copy://"+m.dir+" ./")
	readHost = func() (*host, error) { return &changed, nil }
}

// TestRefresh: an image with an older package is made again, and a refresh that fails or is killed leaves it in use.
func TestRefresh(t *testing.T) {
	need.Root(t)
	need.Tools(t, "mmdebstrap", "dpkg-deb")
	m := mirror{t.TempDir()}
	for dir := m.dir; len(dir) > len(os.TempDir()); dir = filepath.Dir(dir) {
		must(0, os.Chmod(dir, 0o755))(t) // the package manager drops to another user
	}
	m.offer(t, "", "")
	own := must(readHost())(t)
	before := readHost
	t.Cleanup(func() { readHost = before })
	m.use(own)

	const updated = "99999999"
	s := New(Config{Dir: t.TempDir()})
	progress := func(l string) { t.Log(l) }
	ensure := func() *Image { t.Helper(); return must(s.Ensure(t.Context(), Ref{Name: "debian"}, progress))(t) }
	first := ensure()
	if found := must(s.Refresh(t.Context(), false, progress))(t); len(found) != 0 {
		t.Fatalf("updates of a new image: %+v", found)
	}

	m.offer(t, "ca-certificates", updated)
	dry := must(s.Refresh(t.Context(), true, progress))(t)
	if len(dry) != 1 || dry[0].Image != "debian" || len(dry[0].Updates) != 1 || dry[0].Updates[0].Package != "ca-certificates" || dry[0].Updates[0].To != updated {
		t.Fatalf("updates %+v", dry)
	}
	if ensure().Dir != first.Dir {
		t.Error("a dry run changed the image")
	}

	// It fails in the middle: the package cannot be fetched.
	file := filepath.Join(m.dir, "ca-certificates.deb")
	must(0, os.Rename(file, file+".away"))(t)
	if _, err := s.Refresh(t.Context(), false, progress); !errs.Is(err, errs.Unavailable) || ensure().Dir != first.Dir {
		t.Fatalf("without the package: %v", err)
	}
	must(0, os.Rename(file+".away", file))(t)
	if r := must(s.LastRun())(t); r.Failures != 1 || r.EndedAt == nil || r.SucceededAt == nil || r.Error == "" || r.Advice == "" {
		t.Errorf("the record of one that failed: %+v", r)
	}

	// It is killed while it makes the image.
	killed := refreshProcess(t, s.cfg.Dir, m.dir)
	killed.until(t, "making base image")
	killed.kill(t)
	wait.For(t, "its programs have ended", func() bool { return len(programsOf(t, s.cfg.Dir)) == 0 })
	if ensure().Dir != first.Dir {
		t.Error("a refresh that was killed changed the image")
	}
	if r := must(s.LastRun())(t); r.Running || r.EndedAt != nil || r.Failures != 2 || r.Error == "" {
		t.Errorf("the record of one that was killed: %+v", r)
	}

	// It is killed once the image is there, before the round begins.
	next := s.inRound(own.codename, 1)
	made := must(next.Ensure(t.Context(), Ref{Name: "debian"}, progress))(t)
	must(0, os.MkdirAll(filepath.Join(s.cfg.Dir, ".tmp-refresh-killed", "x"), 0o755))(t)
	if ensure().Dir != first.Dir {
		t.Error("an image of a round that did not begin is in use")
	}
	info := must(os.Stat(filepath.Join(made.Dir, "index.json")))(t)
	if found := must(s.Refresh(t.Context(), false, progress))(t); len(found) != 1 {
		t.Fatalf("%+v", found)
	}
	second := ensure()
	if second.Dir != made.Dir || !os.SameFile(info, must(os.Stat(filepath.Join(second.Dir, "index.json")))(t)) {
		t.Errorf("the image that was made already is %s, in use is %s", made.Dir, second.Dir)
	}
	if status := string(must(second.dpkgStatus())(t)); !strings.Contains(status, "Version: "+updated+"\n") {
		t.Error("the new image has the old package")
	}
	if found := must(s.Refresh(t.Context(), false, progress))(t); len(found) != 0 {
		t.Errorf("after the refresh: %+v", found)
	}
	if r := must(s.LastRun())(t); r.Failures != 0 || r.Error != "" || r.SucceededAt == nil || len(r.Made) != 0 {
		t.Errorf("the record of one that succeeded: %+v", r)
	}
	digests := must(s.Digests())(t)
	if at, ok := digests[first.Digest]; len(digests) != 2 || !ok || at.IsZero() || !digests[second.Digest].IsZero() {
		t.Errorf("which images were replaced: %v", digests)
	}
	if left, _ := filepath.Glob(filepath.Join(s.cfg.Dir, ".tmp-*")); len(left) > 0 {
		t.Errorf("it left %v", left)
	}
	if r := must(s.rounds())(t); r.Round[own.codename] != 1 || len(r.Replaced) != 1 {
		t.Errorf("%+v", r)
	}
	if _, err := os.Stat(first.Dir); err != nil {
		t.Error("the image of before is gone, although builds may read it:", err)
	}
}
