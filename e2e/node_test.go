package e2e

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"miren.dev/runtime/pkg/config"
	"miren.dev/runtime/pkg/instance"
	"miren.dev/runtime/testsupport/leakcheck"
	"miren.dev/runtime/testsupport/private"
	"miren.dev/runtime/testsupport/wait"
)

// TestNode exposes a node to hostile guests, to administrators and to power
// losses. The test's server has a network and mounts of its own, so that no
// other test loses its firewall. The test fails if anything is left.
func TestNode(t *testing.T) {
	t.Parallel()
	if !private.Inside() {
		// Here a network exists, for the image.
		shared.r(t, "", "sandbox", "run", "--image", "debian", "--", "true")
	}
	if !private.Run(t) {
		return
	}
	s := own(t, "node")
	in, err := instance.Find(s.state, config.DefaultRunDir())
	if err != nil {
		t.Fatal(err)
	}

	t.Run("a guest cannot fill the host", func(t *testing.T) {
		sid := s.run(t, "--disk", "64MB", "--", "sleep", "600")
		before := diskUsage(t, in.RunDir)
		for _, file := range []string{"/etc/hosts", "/etc/hostname", "/etc/resolv.conf", "/run/runtime/log/x"} {
			res := s.try(t, "", "sandbox", "exec", sid, "--", "dd", "if=/dev/zero", "of="+file, "bs=1M", "count=200")
			if res.Code == 0 {
				t.Errorf("200 MB were written to %s of a sandbox with 64: %s", file, res)
			}
			s.try(t, "", "sandbox", "exec", sid, "--", "truncate", "-s", "0", file) // the agent's processes are not counted
		}
		if grown := diskUsage(t, in.RunDir) - before; grown > 1<<20 {
			t.Errorf("the run directory grew by %d bytes", grown)
		}
		s.r(t, "", "sandbox", "exec", sid, "--", "sh", "-c", "echo 127.0.0.1 mine >>/etc/hosts")
		s.r(t, "", "sandbox", "delete", sid)
	})

	t.Run("a damaged record ends one sandbox", func(t *testing.T) {
		expiring, stopped := s.run(t, "--ttl", "20s", "--", "sleep", "600"), s.run(t, "--", "sleep", "600")
		var damaged []string
		for _, content := range []string{"", "\x00\xffgarbage"} {
			sid := s.run(t, "--", "sleep", "600")
			damaged = append(damaged, sid)
			s.r(t, "", "sandbox", "exec", sid, "--", "true") // it runs
			if err := os.WriteFile(in.State("logs", "sandboxes", sid, "spool", "exit"), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		for _, sid := range damaged {
			if out := s.ended(t, sid); !strings.Contains(out, `"crash"`) {
				t.Errorf("ended without reason crash: %s", out)
			}
			s.r(t, "", "sandbox", "delete", sid)
		}
		s.r(t, "", "sandbox", "stop", stopped)
		if out := s.ended(t, stopped); !strings.Contains(out, `"user"`) {
			t.Errorf("ended without reason user: %s", out)
		}
		if out := s.ended(t, expiring); !strings.Contains(out, `"ttl"`) {
			t.Errorf("ended without reason ttl: %s", out)
		}
		for _, id := range []string{stopped, expiring} {
			s.r(t, "", "sandbox", "delete", id)
		}
	})

	sid := s.run(t, "--", "sleep", "600")
	t.Run("a flushed firewall", func(t *testing.T) {
		listener, err := net.Listen("tcp4", "0.0.0.0:0")
		if err != nil {
			t.Fatal(err)
		}
		defer listener.Close()
		at := netip.AddrPortFrom(s.gateway(t, in), listener.Addr().(*net.TCPAddr).AddrPort().Port())
		c, err := net.Dial("tcp4", at.String())
		if err != nil {
			t.Fatalf("the listener does not answer the machine: %v", err)
		}
		c.Close()
		closed := func() {
			t.Helper()
			res := s.try(t, "", "sandbox", "exec", sid, "--", "timeout", "0.5", "bash", "-c", fmt.Sprintf("echo >/dev/tcp/%s/%d", at.Addr(), at.Port()))
			if res.Code == 0 {
				t.Errorf("the sandbox reaches the machine: %s", res)
			}
		}
		closed()
		for range 3 {
			nft, err := nftables.New()
			if err == nil {
				nft.FlushRuleset()
				err = nft.Flush()
			}
			if err != nil {
				t.Fatal(err)
			}
			flushed := time.Now()
			closed()
			wait.NoError(t, "the table is back", func() error {
				_, err := nft.ListTableOfFamily(in.Name(""), nftables.TableFamilyINet)
				return err
			})
			if took := time.Since(flushed); took > 2*time.Second {
				t.Errorf("the table was back after %s", took)
			}
			closed()
		}
	})

	t.Run("covered network namespaces", func(t *testing.T) {
		for _, args := range [][]string{{"netns", "add", "theirs"}, {"netns", "delete", "theirs"}} {
			if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
		}
		s.r(t, "", "sandbox", "exec", sid, "--", "true")
		s.r(t, "", "sandbox", "stop", sid)
		s.r(t, "", "sandbox", "delete", sid)
		s.run(t, "--", "sleep", "600") // is there when the server is stopped
	})
}

// TestDemoThenTestsThenStop: in README's order, the tests do not count objects
// that the demo makes meanwhile, and the demo stops although another program
// used `ip netns`.
func TestDemoThenTestsThenStop(t *testing.T) {
	s, err := newServer("demo")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.remove(); err != nil {
			t.Error(err)
		}
	})
	try := func(program string, args ...string) (string, error) {
		cmd := exec.CommandContext(t.Context(), program, args...)
		cmd.Env = append(os.Environ(), "DEMO_STATE="+s.state, fmt.Sprintf("DEMO_PORT=%d", s.port))
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	run := func(program string, args ...string) string {
		t.Helper()
		out, err := try(program, args...)
		if err != nil {
			t.Fatalf("%s %v: %v\n%s", program, args, err, out)
		}
		return out
	}
	if out := run("../hack/demo.sh"); !strings.Contains(out, "hello from") {
		t.Errorf("the demo: %s", out)
	}
	in, err := instance.Find(s.state, config.DefaultRunDir())
	if err != nil {
		t.Fatal(err)
	}
	note := filepath.Join(t.TempDir(), "note")
	run("../hack/clean-check.sh", "before", note)
	run("go", "test", "-count=1", "-run", "^TestAttachIsRepeatable$", "../components/network")
	run("go", "test", "-count=1", "-run", "^TestCleanCheckFindsWhatIsNewAndOfNoOther$", "../hack") // uses `ip netns add`
	s.run(t, "--", "sleep", "600")
	// Its exit code also covers objects that other checkouts make meanwhile.
	if out, _ := try("../hack/clean-check.sh", "after", note); strings.Contains(out, in.ID) {
		t.Errorf("what the demo made counts as left by the tests: %s", out)
	}
	s.answers(t, "go-http", "/", "Hello from go-http")
	run("../hack/demo.sh", "stop")
	if left, err := leakcheck.List(in); err != nil || len(left) > 0 {
		t.Errorf("the demo left %v, %v", left, err)
	}
}

// gateway returns the machine's address on the bridge of the sandboxes.
func (s *server) gateway(t *testing.T, in *instance.Instance) netip.Addr {
	t.Helper()
	b, err := os.ReadFile(in.State("network.json"))
	if err != nil {
		t.Fatal(err)
	}
	var saved struct {
		Subnet netip.Prefix `json:"subnet"`
	}
	if err := json.Unmarshal(b, &saved); err != nil {
		t.Fatal(err)
	}
	return saved.Subnet.Addr().Next()
}

// diskUsage returns the space that the files below dir use on their file
// system.
func diskUsage(t *testing.T, dir string) (sum int64) {
	t.Helper()
	var top unix.Stat_t
	if err := unix.Lstat(dir, &top); err != nil {
		t.Fatal(err)
	}
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		var st unix.Stat_t
		if err != nil || unix.Lstat(path, &st) != nil {
			return nil // removed meanwhile
		}
		if st.Dev != top.Dev && e.IsDir() {
			return fs.SkipDir
		}
		if st.Dev == top.Dev {
			sum += st.Blocks * 512
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return sum
}
