package sysuser

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/testsupport/need"
)

// becomeEnv makes the test binary a process that becomes a user and then says
// what each of its threads may do. Its value is the number of the user and a file
// of root.
const becomeEnv = "SYSUSER_TEST_BECOME"

// unknownUID is the number of a user that the user database does not have.
const unknownUID = 1999999

func TestMain(m *testing.M) {
	if v := os.Getenv(becomeEnv); v != "" {
		if err := becomeAndTell(v); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func becomeAndTell(v string) error {
	number, file, _ := strings.Cut(v, " ")
	open, err := os.Open(file)
	if err != nil {
		return err
	}
	defer open.Close()
	u, err := Find(number)
	if err != nil {
		return err
	}
	if err := u.Become(); err != nil {
		return err
	}
	if _, err := os.Open(file); !errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("open a file of root: %w", err)
	}
	if _, err := open.Stat(); err != nil {
		return fmt.Errorf("a file that was open: %w", err)
	}
	if err := syscall.Setuid(0); err == nil {
		return errors.New("it could become root again")
	}
	tasks, err := filepath.Glob("/proc/self/task/*/status")
	if err != nil {
		return err
	}
	for _, t := range tasks {
		b, err := os.ReadFile(t)
		if err != nil {
			return err
		}
		os.Stdout.Write(b)
	}
	return nil
}

func needsRoot(t *testing.T) {
	t.Helper()
	need.Root(t)
}

func TestBecomeLeavesNoThreadWithPrivileges(t *testing.T) {
	needsRoot(t)
	file := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = []string{fmt.Sprintf("%s=%d %s", becomeEnv, unknownUID, file)}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Groups: []uint32{0, 4}}}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	id := strconv.Itoa(unknownUID)
	threads := 0
	for line := range strings.Lines(string(out)) {
		f := strings.Fields(line)
		switch f[0] {
		case "Uid:", "Gid:":
			threads++
			for _, n := range f[1:] {
				if n != id {
					t.Error(line)
				}
			}
		case "Groups:":
			if len(f) > 1 {
				t.Error(line)
			}
		case "CapInh:", "CapPrm:", "CapEff:", "CapAmb:":
			if f[1] != "0000000000000000" {
				t.Error(line)
			}
		}
	}
	if threads < 4 {
		t.Errorf("only %d lines name a user", threads)
	}
}

func TestFind(t *testing.T) {
	for _, c := range []struct {
		name  string
		want  User
		class errs.Class
	}{
		{"root", User{"root", 0, 0}, ""},
		{"0", User{"root", 0, 0}, ""},
		{strconv.Itoa(unknownUID), User{strconv.Itoa(unknownUID), unknownUID, unknownUID}, ""},
		{"no-such-user", User{}, errs.FailedPrecondition},
	} {
		u, err := Find(c.name)
		if u != c.want || errs.ClassOf(err) != c.class {
			t.Errorf("%s: %+v, %v", c.name, u, err)
		}
	}
}

func TestOwnTakesOver(t *testing.T) {
	needsRoot(t)
	base := t.TempDir()
	dir, outside := filepath.Join(base, "dir"), filepath.Join(base, "outside")
	if err := os.Mkdir(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	for _, f := range []string{outside, dir + "/table", dir + "/foreign"} {
		if err := os.WriteFile(f, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Symlink(outside, dir+"/symlink"), os.Link(outside, dir+"/link"), os.Chown(dir+"/foreign", 4321, 4321)); err != nil {
		t.Fatal(err)
	}
	u := User{Name: "new", UID: unknownUID, GID: unknownUID}
	for range 2 { // the second changes nothing
		if err := u.Own(dir); err != nil {
			t.Fatal(err)
		}
		for path, want := range map[string]int{
			dir: unknownUID, dir + "/table": unknownUID, dir + "/foreign": 4321, dir + "/symlink": 0, dir + "/link": 0, outside: 0,
		} {
			st, err := os.Lstat(path)
			if err != nil {
				t.Fatal(err)
			}
			if s := st.Sys().(*syscall.Stat_t); int(s.Uid) != want || int(s.Gid) != want {
				t.Errorf("%s belongs to %d:%d, want %d", path, s.Uid, s.Gid, want)
			}
		}
		if st, err := os.Stat(dir); err != nil || st.Mode().Perm() != 0o700 {
			t.Error(st, err)
		}
	}
	// Files that the user makes later do not change hands by a repetition.
	if err := os.WriteFile(dir+"/late", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := u.Own(dir); err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(dir + "/late"); err != nil || st.Sys().(*syscall.Stat_t).Uid != 0 {
		t.Error(st, err)
	}
}

func TestCanEnter(t *testing.T) {
	needsRoot(t)
	dir := t.TempDir()
	inner := filepath.Join(dir, "inner")
	if err := errors.Join(os.Mkdir(inner, 0o711), os.Chmod(filepath.Dir(dir), 0o711)); err != nil { // the testing package's is 0700
		t.Fatal(err)
	}
	u := User{Name: "other", UID: unknownUID, GID: unknownUID}
	if err := u.CanEnter(inner); err != nil {
		t.Error(err)
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := u.CanEnter(inner); !errs.Is(err, errs.FailedPrecondition) || !strings.Contains(err.Error(), dir+" ") {
		t.Errorf("below a closed directory: %v", err)
	}
	if err := (User{}).CanEnter(inner); err != nil {
		t.Errorf("this process's own user: %v", err)
	}
}
