// Package leakcheck lists the parts of an installation that exist on a machine,
// by asking the kernel and not the code that made them: for tests, and for
// people who want to know whether a host is clean. It creates installations for
// tests, and removes the installations of killed tests.
//
// It finds everything by the installation's id in a name, or by a path below
// its state or run directory.
package leakcheck

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"miren.dev/runtime/components/network/netdump"
	"miren.dev/runtime/pkg/instance"
	"miren.dev/runtime/pkg/proc"
	"miren.dev/runtime/testsupport/wait"
)

// Item is one part of an installation on the machine.
type Item struct {
	Kind string // process, netns, link, rule, table, mount, cgroup, loop
	Name string
}

func (i Item) String() string { return i.Kind + " " + i.Name }

// List returns all parts of an installation. Directories and plain files below
// its own directories do not count.
func List(in *instance.Instance) ([]Item, error) {
	var all []Item
	var failed error
	for _, list := range []func(*instance.Instance) ([]Item, error){processes, namespaces, links, rules, tables, mounts, cgroups, loops} {
		items, err := list(in)
		all, failed = append(all, items...), errors.Join(failed, err)
	}
	slices.SortFunc(all, func(a, b Item) int { return strings.Compare(a.String(), b.String()) })
	return slices.Compact(all), failed
}

// settle is how long the kernel may take to finish a removal.
const settle = 10 * time.Second

// Check fails the test if any part of the installation is on the machine when
// the test has ended. Call it before the test creates anything that a cleanup
// removes, since cleanups run in reverse order.
func Check(t testing.TB, in *instance.Instance) {
	t.Helper()
	t.Cleanup(func() {
		t.Helper()
		wait.NoError(t, "nothing of the installation is left", func() error {
			left, err := List(in)
			if err != nil {
				t.Fatalf("cannot look for leaks: %v", err)
			}
			for _, i := range left {
				err = errors.Join(err, fmt.Errorf("leaked: %s", i))
			}
			return err
		}, wait.Within(settle), wait.Every(50*time.Millisecond))
	})
}

// owned reports whether a text names the installation or a path of it.
func owned(in *instance.Instance, s string) bool {
	return hasWord(s, in.Name("")) || hasWord(s, in.StateDir) || hasWord(s, in.RunDir)
}

// hasWord finds w in s where no letter or digit follows.
func hasWord(s, w string) bool {
	for {
		i := strings.Index(s, w)
		if i < 0 {
			return false
		}
		s = s[i+len(w):]
		if s == "" || !(s[0] >= 'a' && s[0] <= 'z' || s[0] >= '0' && s[0] <= '9') {
			return true
		}
	}
}

func processes(in *instance.Instance) ([]Item, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	// The command of a server may say nothing of its installation, and it starts the others again.
	var server proc.Record
	if b, err := os.ReadFile(in.Socket("server.json")); err != nil || json.Unmarshal(b, &server) != nil || !server.Alive() {
		server.PID = 0
	}
	var out []Item
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		// A process may end while it is examined.
		line, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		cwd, _ := os.Readlink(filepath.Join("/proc", e.Name(), "cwd"))
		groups, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cgroup"))
		command := strings.TrimSpace(strings.ReplaceAll(string(line), "\x00", " "))
		if pid == server.PID || owned(in, command) || owned(in, cwd) || owned(in, string(groups)) {
			out = append(out, Item{"process", fmt.Sprintf("%d %s", pid, command)})
		}
	}
	return out, nil
}

// namespaces returns the network namespaces whose name is in the run directory
// or in the directory of `ip netns`.
func namespaces(in *instance.Instance) ([]Item, error) {
	var out []Item
	for _, pattern := range []string{in.Socket("netns", "*"), filepath.Join("/run/netns", in.Name("")+"*")} {
		paths, err := filepath.Glob(pattern)
		if err != nil {
			return nil, err
		}
		for _, p := range paths {
			out = append(out, Item{"netns", p})
		}
	}
	return out, nil
}

// rules returns the routing rules that name an interface of the installation.
func rules(in *instance.Instance) ([]Item, error) {
	all, err := netdump.List(func() ([]netlink.Rule, error) { return netlink.RuleList(netlink.FAMILY_V4) })
	if err != nil {
		return nil, fmt.Errorf("routing rules: %w", err)
	}
	var out []Item
	for _, r := range all {
		if strings.HasPrefix(r.IifName, "rt"+in.ID) {
			out = append(out, Item{"rule", r.IifName})
		}
	}
	return out, nil
}

func links(in *instance.Instance) ([]Item, error) {
	all, err := netdump.Links()
	if err != nil {
		return nil, fmt.Errorf("interfaces: %w", err)
	}
	var out []Item
	for _, l := range all {
		if strings.HasPrefix(l.Attrs().Name, "rt"+in.ID) {
			out = append(out, Item{"link", l.Attrs().Name})
		}
	}
	return out, nil
}

func tables(in *instance.Instance) ([]Item, error) {
	c, err := nftables.New()
	if err != nil {
		return nil, fmt.Errorf("nftables: %w", err)
	}
	all, err := c.ListTables()
	if errors.Is(err, unix.EPERM) {
		return nil, nil // a user without permission to list them has not created any
	}
	if err != nil {
		return nil, fmt.Errorf("nftables: %w", err)
	}
	var out []Item
	for _, t := range all {
		if strings.HasPrefix(t.Name, in.Name("")) {
			out = append(out, Item{"table", t.Name})
		}
	}
	return out, nil
}

func mounts(in *instance.Instance) ([]Item, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var out []Item
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20) // overlay mounts have long options
	for lines.Scan() {
		if fields := strings.Fields(lines.Text()); len(fields) > 4 && owned(in, fields[4]) {
			out = append(out, Item{"mount", fields[4]})
		}
	}
	return out, lines.Err()
}

func cgroups(in *instance.Instance) ([]Item, error) {
	var out []Item
	// At the top of a hierarchy of version 1 or 2, or in a slice.
	for _, depth := range []string{"*", "*/*", "*/*/*"} {
		dirs, err := filepath.Glob(filepath.Join("/sys/fs/cgroup", depth))
		if err != nil {
			return nil, err
		}
		for _, d := range dirs {
			if st, err := os.Lstat(d); err == nil && st.IsDir() && hasWord(filepath.Base(d), in.Name("")) {
				out = append(out, Item{"cgroup", d})
			}
		}
	}
	return out, nil
}

func loops(in *instance.Instance) ([]Item, error) {
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return nil, err
	}
	var out []Item
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			continue // detached meanwhile
		}
		if path := strings.TrimSpace(string(b)); owned(in, path) {
			out = append(out, Item{"loop", strings.Split(f, "/")[3] + " " + path})
		}
	}
	return out, nil
}
