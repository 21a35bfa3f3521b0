package leakcheck

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"miren.dev/runtime/pkg/instance"
	"miren.dev/runtime/testsupport/need"
)

// killed is set in the process that TestInstallation kills.
const killed = "LEAKCHECK_TEST_KILLED"

func TestMain(m *testing.M) {
	if os.Getenv(killed) == "" {
		os.Exit(m.Run())
	}
	in, _, err := install()
	if err == nil {
		err = makeOneOfEach(in)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Printf("%s\n%s\n", in.StateDir, in.RunDir)
	os.Stdout.Close()
	_, _ = io.Copy(io.Discard, os.Stdin) // has one of each kind, until it is killed, or its parent ends
}

func makeOneOfEach(in *instance.Instance) error {
	sleep := exec.Command("sleep", "600")
	sleep.Dir = in.StateDir
	sleep.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := sleep.Start(); err != nil {
		return err
	}
	for _, dir := range []string{"mounted", "mounted/again"} {
		if err := os.Mkdir(in.State(dir), 0o755); err != nil {
			return err
		}
		if err := unix.Mount("none", in.State(dir), "tmpfs", 0, ""); err != nil {
			return err
		}
	}
	if err := os.WriteFile(in.State("image"), make([]byte, 1<<20), 0o644); err != nil {
		return err
	}
	for _, args := range [][]string{
		{"losetup", "-f", in.State("image")},
		{"ip", "rule", "add", "priority", "32000", "iif", in.Bridge(), "fwmark", "0/0x2000000", "blackhole"},
	} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%v: %w: %s", args, err, out)
		}
	}
	netns := in.Socket("netns", "somewhere")
	if err := os.MkdirAll(filepath.Dir(netns), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(netns, nil, 0o644); err != nil {
		return err
	}
	if err := unix.Mount("/proc/self/ns/net", netns, "", unix.MS_BIND, ""); err != nil {
		return err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = in.Bridge()
	if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil {
		return err
	}
	c, err := nftables.New()
	if err != nil {
		return err
	}
	c.AddTable(&nftables.Table{Family: nftables.TableFamilyIPv4, Name: in.Name("")})
	c.AddTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: in.Name("")})
	if err := c.Flush(); err != nil {
		return err
	}
	root := "/sys/fs/cgroup"
	if _, err := os.Stat(root + "/memory"); err == nil { // version 1
		root += "/memory"
	}
	return os.MkdirAll(filepath.Join(root, in.Name(""), "inner"), 0o755)
}

func TestInstallation(t *testing.T) {
	need.Root(t)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	tmp := t.TempDir() // a registry of the test's own
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), killed+"=1", "TMPDIR="+tmp)
	cmd.Stderr = os.Stderr
	if _, err := cmd.StdinPipe(); err != nil { // open until Wait
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
	}()
	var dirs []string
	for lines := bufio.NewScanner(stdout); lines.Scan(); {
		dirs = append(dirs, lines.Text())
	}
	if len(dirs) != 2 {
		t.Fatalf("the other test failed: %q", dirs)
	}
	theirs, err := instance.Find(dirs[0], filepath.Dir(dirs[1]))
	if err != nil {
		t.Fatal(err)
	}
	list := func() map[string]int {
		t.Helper()
		items, err := List(theirs)
		if err != nil {
			t.Fatal(err)
		}
		kinds := map[string]int{}
		for _, i := range items {
			kinds[i.Kind]++
		}
		return kinds
	}
	t.Setenv("TMPDIR", tmp)
	check := func() {
		t.Helper()
		kinds := list()
		for _, kind := range removeOrder {
			if kinds[kind] == 0 {
				t.Errorf("there is no %s: %v", kind, kinds)
			}
		}
	}
	check()
	ours := Installation(t)
	check() // a process that lives keeps its installation

	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
	check()
	others := Installation(t)
	if kinds := list(); len(kinds) > 0 {
		t.Errorf("a killed test's installation still has %v", kinds)
	}
	if _, err := os.Stat(filepath.Dir(theirs.StateDir)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("its directory is still there: %v", err)
	}
	for _, in := range []*instance.Instance{ours, others} {
		if _, err := instance.Find(in.StateDir, filepath.Dir(in.RunDir)); err != nil {
			t.Errorf("an installation in use: %v", err)
		}
	}
}

// TestRegistryOfAnother: a registry that another user may have written is not obeyed.
func TestRegistryOfAnother(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := registry(dir).sweep(); err == nil {
		t.Error("a directory that all may write was taken as the registry")
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(t.TempDir(), link); err != nil {
		t.Fatal(err)
	}
	if _, err := registry(link).add("/nowhere"); err == nil {
		t.Error("a symbolic link was taken as the registry")
	}
}
