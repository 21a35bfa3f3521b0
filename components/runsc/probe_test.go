package runsc_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/testsupport/executiontest"
	"miren.dev/runtime/testsupport/private"
	"miren.dev/runtime/testsupport/runsctest"
)

// TestProbes tries to escape from a sandbox, as root and as a user. Then it runs the same probes on the machine, without
// any defence: those that are refused there too would prove nothing.
func TestProbes(t *testing.T) {
	if !private.Run(t) {
		return
	}
	m := runsctest.New(t)
	e := m.Env()
	secret := filepath.Join(m.Instance.RunDir, "secret")
	if err := os.WriteFile(secret, []byte("of the machine"), 0o644); err != nil {
		t.Fatal(err)
	}
	abstract := "probe-" + m.Instance.ID
	answers(t, "unix", "@"+abstract)
	neighbour := start(t, e, "neighbour", "serve", "8081")
	start(t, e, "suspect", "sleep")

	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	// Metadata services of clouds, private and shared networks, and a public address of the machine.
	for _, a := range []string{"169.254.169.254", "169.254.170.2", "100.100.100.200", "10.77.0.1", "172.20.0.1", "192.168.77.1", "198.51.100.7"} {
		if err := netlink.AddrAdd(lo, &netlink.Addr{IPNet: &net.IPNet{IP: net.ParseIP(a), Mask: net.CIDRMask(32, 32)}}); err != nil {
			t.Fatal(err)
		}
	}
	port := answers(t, "tcp", ":0").(*net.TCPAddr).Port
	all, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	closed := []string{net.JoinHostPort(neighbour.Address, "8081")}
	for _, a := range all {
		if ip := a.(*net.IPNet).IP.To4(); ip != nil && !ip.IsLoopback() {
			closed = append(closed, net.JoinHostPort(ip.String(), strconv.Itoa(port)))
		}
	}
	if len(closed) < 9 {
		t.Fatalf("addresses of the machine: %v", closed)
	}

	program := executiontest.Program(t)
	victim := exec.Command(program, "sleep")
	if err := victim.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = victim.Process.Kill(); _ = victim.Wait() })
	args := func(tracee int, agent string) []string {
		return []string{"probe", "file=" + secret, "text=of the machine", "pid=" + strconv.Itoa(victim.Process.Pid), "tracee=" + strconv.Itoa(tracee),
			"abstract=" + abstract, "agent=" + agent, "dial=" + strings.Join(closed, ",")}
	}
	for _, user := range []string{"root", "app"} {
		out := e.Output(t, "suspect", execution.ExecSpec{Command: append([]string{"/bin/guest"}, args(1, "/run/runtime/agent")...), User: user})
		if reached := verdicts(t, out, "reached"); len(reached) > 0 {
			t.Errorf("%s in the sandbox reached: %v\n%s", user, reached, out)
		}
	}
	// The root of an app has the default capabilities. It reads files of all users of its sandbox, those of its own agent
	// included, whose messages the node trusts no more than those of any guest.
	own := []string{"read the agent's token", "connect to the agent's socket"}
	service := describe(e, "service", "sleep")
	service.Capabilities = execution.CapabilitiesDefault
	e.Start(t, service)
	for user, can := range map[string][]string{"root": own, "app": nil} {
		out := e.Output(t, "service", execution.ExecSpec{Command: append([]string{"/bin/guest"}, args(1, "/run/runtime/agent")...), User: user})
		if reached := verdicts(t, out, "reached"); !slices.Equal(reached, can) {
			t.Errorf("%s in a sandbox with the default capabilities reached %v, not %v\n%s", user, reached, can, out)
		}
	}

	tokens, err := filepath.Glob(filepath.Join(m.Instance.RunDir, "*", "suspect", "config"))
	if err != nil || len(tokens) != 1 {
		t.Fatalf("the agent's tokens: %v, %v", tokens, err)
	}
	out, err := exec.Command(program, args(victim.Process.Pid, filepath.Dir(tokens[0]))...).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if refused := verdicts(t, string(out), "refused"); len(refused) > 0 {
		t.Errorf("without a sandbox these probes are refused too: %v\n%s", refused, out)
	}
	if absent := verdicts(t, string(out), "absent"); len(absent) > 0 {
		t.Logf("the kernel of this machine lacks: %v", absent)
	}
}

// answers accepts connections until the test ends.
func answers(t *testing.T, network, address string) net.Addr {
	t.Helper()
	l, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	return l.Addr()
}

func start(t *testing.T, e *executiontest.Env, id string, command ...string) execution.Instance {
	t.Helper()
	return e.Start(t, describe(e, id, command...))
}

func describe(e *executiontest.Env, id string, command ...string) execution.Spec {
	return execution.Spec{
		ID: id, Image: e.Image, Command: append([]string{"/bin/guest"}, command...), Network: execution.NetworkBridge,
		CPUMillis: 500, MemoryBytes: 128 << 20, PIDs: 64, DiskBytes: 16 << 20, DiskFiles: 10_000, OpenFiles: 1024, FileBytes: 16 << 20, Bandwidth: 10 << 20,
	}
}

// verdicts returns the names of the probes with a verdict.
func verdicts(t *testing.T, out, verdict string) (names []string) {
	t.Helper()
	n := 0
	for line := range strings.Lines(out) {
		if f := strings.Split(line, "\t"); len(f) == 3 {
			n++
			if f[1] == verdict {
				names = append(names, f[0])
			}
		}
	}
	if n == 0 {
		t.Fatalf("no probes ran: %s", out)
	}
	return names
}

// TestBombs uses up what a sandbox can use up. Its neighbours answer all the time, and the machine keeps its memory,
// processes and space.
func TestBombs(t *testing.T) {
	m := runsctest.New(t)
	e := m.Env()
	start(t, e, "neighbour", "sleep")
	quiet := execTimes(t, e, 40)
	const length = 3 * time.Second
	for _, kind := range []string{"processes", "threads", "memory", "disk", "files", "opened", "output", "cpu"} {
		t.Run(kind, func(t *testing.T) {
			before := size(t, m.Instance.RunDir) + size(t, m.Instance.StateDir)
			start(t, e, "bomber", "bomb", kind, strconv.Itoa(int(length.Seconds())))
			bombed := execTimes(t, e, 40)
			if grown := size(t, m.Instance.RunDir) + size(t, m.Instance.StateDir) - before; grown > 200<<20 {
				t.Errorf("the machine has %d MiB less", grown>>20)
			}
			exit := e.Ended(t, "bomber")
			t.Logf("neighbour's exec p50 %s p99 %s, quiet %s %s; the sandbox ended with %s, code %d %s", bombed[20], bombed[39], quiet[20], quiet[39], exit.Cause, exit.Code, exit.Message)
			if kind == "memory" && exit.Cause != execution.CauseOOM {
				t.Errorf("it ended with %+v", exit)
			}
		})
	}
}

// execTimes returns, sorted, how long n processes of the neighbour took, one after the other.
func execTimes(t *testing.T, e *executiontest.Env, n int) []time.Duration {
	t.Helper()
	var all []time.Duration
	for i := range n {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		began := time.Now()
		p, err := e.Driver.Exec(ctx, "neighbour", execution.ExecSpec{Command: []string{"/bin/guest", "echo"}, NoInput: true})
		if err == nil {
			var code int
			if code, err = p.Wait(ctx); code != 0 {
				err = fmt.Errorf("exit code %d", code)
			}
		}
		cancel()
		if err != nil {
			t.Fatalf("exec %d of the neighbour: %v", i, err)
		}
		all = append(all, time.Since(began))
	}
	slices.Sort(all)
	return all
}
