package e2e

import (
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/pkg/config"
	"miren.dev/runtime/pkg/instance"
)

// ingressIsConfined fails the test unless the ingress process runs as a user of
// its own that may serve and nothing else.
func (s *server) ingressIsConfined(t *testing.T) {
	t.Helper()
	proc := fmt.Sprintf("/proc/%d", s.pid(t, "ingress"))
	uid, gid := confinedThreads(t, proc)
	b, err := os.ReadFile(proc + "/environ")
	if err != nil {
		t.Fatal(err)
	}
	for _, kv := range strings.Split(strings.TrimRight(string(b), "\x00"), "\x00") {
		if name, _, _ := strings.Cut(kv, "="); !slices.Contains([]string{"PATH", "GOMEMLIMIT", "GODEBUG"}, name) {
			t.Errorf("the ingress has the variable %s", name)
		}
	}
	in, err := instance.Find(s.state, config.DefaultRunDir())
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(s.state, "ingress")
	if st, err := os.Stat(dir); err != nil || st.Mode().Perm() != 0o700 || int(st.Sys().(*syscall.Stat_t).Uid) != uid {
		t.Errorf("the directory of the ingress: %v %v", st, err)
	}
	if st, err := os.Stat(dir + "/table"); err != nil || int(st.Sys().(*syscall.Stat_t).Uid) != uid {
		t.Errorf("the table of the ingress: %v %v", st, err)
	}

	files, sockets := reachable(t, in, uid, gid)
	public := []string{in.State("instance-id"), in.State("node-id"), in.State("network.json"), in.State("stopped")}
	for _, f := range files {
		if !slices.Contains(public, f) && filepath.Dir(f) != dir {
			t.Errorf("the ingress can read %s", f)
		}
	}
	if want := []string{in.Socket("server-ingress.sock")}; !slices.Equal(sockets, want) {
		t.Errorf("the ingress can connect to %q, want %q", sockets, want)
	}
}

// confinedThreads checks the credentials of all threads and returns the user and
// the group.
func confinedThreads(t *testing.T, proc string) (uid, gid int) {
	t.Helper()
	tasks, err := filepath.Glob(proc + "/task/*/status")
	if err != nil || len(tasks) == 0 {
		t.Fatalf("the threads of the ingress: %v %v", tasks, err)
	}
	for _, task := range tasks {
		b, err := os.ReadFile(task)
		if err != nil {
			continue // it ended
		}
		for line := range strings.Lines(string(b)) {
			key, value, _ := strings.Cut(strings.TrimSpace(line), ":")
			value = strings.TrimSpace(value)
			bad := false
			switch key {
			case "Uid", "Gid":
				id := &uid
				if key == "Gid" {
					id = &gid
				}
				var all [4]int
				_, err := fmt.Sscan(value, &all[0], &all[1], &all[2], &all[3])
				*id = all[0]
				bad = err != nil || *id == 0 || all != [4]int{*id, *id, *id, *id}
			case "Groups":
				bad = value != ""
			case "CapInh", "CapPrm", "CapEff", "CapAmb":
				bad = strings.Trim(value, "0") != ""
			case "NoNewPrivs":
				bad = value != "1"
			}
			if bad {
				t.Errorf("a thread of the ingress has %s %s", key, value)
			}
		}
	}
	return uid, gid
}

// reachable returns the files of the installation that a user can read and the
// sockets that it can connect to. Images, caches, and settings of components in
// the run directory are left out.
func reachable(t *testing.T, in *instance.Instance, uid, gid int) (files, sockets []string) {
	t.Helper()
	var all []string
	skip := []string{in.State("containerd"), in.State("buildkit"), in.State("pg")}
	for _, root := range []string{in.StateDir, in.RunDir} {
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			switch {
			case err != nil && path != root:
				return nil // removed meanwhile
			case err != nil:
				return err
			case d.IsDir() && slices.Contains(skip, path):
				return filepath.SkipDir
			case d.Type() == fs.ModeSocket, d.Type().IsRegular() && (root == in.StateDir || filepath.Ext(path) == ".yaml"):
				all = append(all, path)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	asUser(uid, gid, func() {
		for _, path := range all {
			if f, err := os.Open(path); err == nil {
				f.Close()
				files = append(files, path)
			} else if c, err := net.Dial("unix", path); err == nil {
				c.Close()
				sockets = append(sockets, path)
			}
		}
	})
	if len(all) < 10 {
		t.Errorf("the installation has only %q", all)
	}
	return files, sockets
}

// asUser runs f on a thread that has the privileges of a user.
func asUser(uid, gid int, f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		for _, call := range [][4]uintptr{
			{unix.SYS_SETGROUPS, 0, 0, 0},
			{unix.SYS_SETRESGID, uintptr(gid), uintptr(gid), uintptr(gid)},
			{unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid)},
		} {
			if _, _, errno := syscall.RawSyscall(call[0], call[1], call[2], call[3]); errno != 0 {
				panic(errno)
			}
		}
		f()
	}()
	<-done
}

// giveIngressToRoot makes the files of the ingress what an earlier version left,
// whose ingress ran as root.
func (s *server) giveIngressToRoot(t *testing.T) {
	t.Helper()
	dir := filepath.Join(s.state, "ingress")
	for _, path := range []string{filepath.Join(dir, "table"), dir} {
		if err := os.Chown(path, 0, 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}
}
