package instance

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"miren.dev/runtime/pkg/errs"
)

func open(t *testing.T, state, run string) *Instance {
	t.Helper()
	in, err := Open(state, run)
	if err != nil {
		t.Fatal(err)
	}
	return in
}

func TestOpenKeepsIdentity(t *testing.T) {
	state, run := filepath.Join(t.TempDir(), "a", "state"), filepath.Join(t.TempDir(), "run")
	in := open(t, state, run)
	if !validID.MatchString(in.ID) || in.StateDir != state || in.RunDir != filepath.Join(run, in.ID) {
		t.Fatalf("%+v", in)
	}
	for _, dir := range []string{in.StateDir, in.RunDir} {
		if st, err := os.Stat(dir); err != nil || st.Mode().Perm() != 0o711 {
			t.Errorf("%s: %v, %v", dir, st, err)
		}
	}
	if again := open(t, state, run); again.ID != in.ID {
		t.Errorf("id %s became %s", in.ID, again.ID)
	}
	// After a reboot the run directory is gone.
	if err := os.RemoveAll(run); err != nil {
		t.Fatal(err)
	}
	open(t, state, run)
	if _, err := os.Stat(in.RunDir); err != nil {
		t.Error(err)
	}
	if other := open(t, t.TempDir(), run); other.ID == in.ID {
		t.Error("two installations share an id")
	}
	left, err := filepath.Glob(filepath.Join(state, ".instance-id-*"))
	if err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestOpenConcurrently(t *testing.T) {
	state, run := t.TempDir(), t.TempDir()
	ids := make(chan string, 20)
	for range cap(ids) {
		go func() {
			in, err := Open(state, run)
			if err != nil {
				t.Error(err)
				ids <- ""
				return
			}
			ids <- in.ID
		}()
	}
	first := <-ids
	for range cap(ids) - 1 {
		if id := <-ids; id != first {
			t.Errorf("ids %s and %s", first, id)
		}
	}
}

func TestOpenRefuses(t *testing.T) {
	broken := t.TempDir()
	if err := os.WriteFile(filepath.Join(broken, "instance-id"), []byte("Not an id\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		state, run string
		class      errs.Class
	}{
		"relative state": {"state", "/run/x", errs.InvalidArgument},
		"relative run":   {t.TempDir(), "run", errs.InvalidArgument},
		"long run":       {t.TempDir(), "/run/" + strings.Repeat("x", 70), errs.InvalidArgument},
		"broken id":      {broken, t.TempDir(), errs.Corrupt},
		"state is file":  {file, t.TempDir(), errs.FailedPrecondition},
		"run is file":    {t.TempDir(), file, errs.FailedPrecondition},
	} {
		if _, err := Open(c.state, c.run); !errs.Is(err, c.class) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestLockIsExclusive(t *testing.T) {
	state, run := t.TempDir(), t.TempDir()
	a, b := open(t, state, run), open(t, state, run)
	if err := a.Lock(); err != nil {
		t.Fatal(err)
	}
	err := b.Lock()
	if !errs.Is(err, errs.FailedPrecondition) || !strings.Contains(err.Error(), strconv.Itoa(os.Getpid())) || errs.HintOf(err) == "" {
		t.Fatalf("second lock: %v, hint %q", err, errs.HintOf(err))
	}
	// A child that outlives the server does not keep the lock.
	child := exec.Command("sleep", "1000")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = child.Process.Kill(); _ = child.Wait() }()
	a.Unlock()
	a.Unlock()
	if err := b.Lock(); err != nil {
		t.Fatalf("lock after unlock: %v", err)
	}
	b.Unlock()
}

func TestNamesCarryID(t *testing.T) {
	in := &Instance{ID: "abcd1234", StateDir: "/s", RunDir: "/r/abcd1234"}
	for got, want := range map[string]string{
		in.Name(""): "rt-abcd1234", in.Name("x"): "rt-abcd1234-x", in.Bridge(): "rtabcd1234br",
		in.State("pg", "data"): "/s/pg/data", in.Socket("a.sock"): "/r/abcd1234/a.sock", in.State(): "/s",
	} {
		if got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	if len(in.Bridge()) > 15 {
		t.Errorf("bridge %s is too long for the kernel", in.Bridge())
	}
}
