package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"miren.dev/runtime/pkg/config"
	"miren.dev/runtime/pkg/instance"
	"miren.dev/runtime/testsupport/leakcheck"
	"miren.dev/runtime/testsupport/need"
	"miren.dev/runtime/testsupport/wait"
)

// site is a network behind a router that translates addresses: what is in it
// reaches the machine at uplink, and is reached by nobody.
type site struct {
	router, inside string // network namespaces
	uplink         string // address of this machine for the site
}

// newSite makes one.
func newSite(t *testing.T) *site {
	t.Helper()
	tag := fmt.Sprintf("%d", os.Getpid()%10000)
	s := &site{router: "rt-e2e-gw-" + tag, inside: "rt-e2e-in-" + tag, uplink: "10.254.77.1"}
	sh := func(args ...string) {
		t.Helper()
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	for _, ns := range []string{s.router, s.inside} {
		sh("ip", "netns", "add", ns)
		t.Cleanup(func() {
			if out, err := exec.Command("ip", "netns", "delete", ns).CombinedOutput(); err != nil {
				t.Errorf("delete %s: %v\n%s", ns, err, out)
			}
		})
	}
	up, down := "rtup"+tag, "rtdn"+tag
	sh("ip", "link", "add", up, "type", "veth", "peer", "name", "wan", "netns", s.router)
	sh("ip", "address", "add", s.uplink+"/30", "dev", up)
	sh("ip", "link", "set", up, "up")
	sh("ip", "-n", s.router, "link", "add", down, "type", "veth", "peer", "name", "lan", "netns", s.inside)
	for _, l := range []string{
		"-n " + s.router + " address add 10.254.77.2/30 dev wan", "-n " + s.router + " link set wan up", "-n " + s.router + " link set lo up",
		"-n " + s.router + " address add 192.168.177.1/24 dev " + down, "-n " + s.router + " link set " + down + " up",
		"-n " + s.router + " route add default via " + s.uplink,
		"-n " + s.inside + " address add 192.168.177.2/24 dev lan", "-n " + s.inside + " link set lan up", "-n " + s.inside + " link set lo up",
		"-n " + s.inside + " route add default via 192.168.177.1",
	} {
		sh(append([]string{"ip"}, strings.Fields(l)...)...)
	}
	sh("ip", "netns", "exec", s.router, "sysctl", "-qw", "net.ipv4.ip_forward=1")
	sh("ip", "netns", "exec", s.router, "nft", "add table ip nat; add chain ip nat post { type nat hook postrouting priority 100; }; add rule ip nat post oifname wan masquerade")
	return s
}

// command is r inside the site.
func (s *site) command(ctx context.Context, srv *server, args ...string) *exec.Cmd {
	cmd := srv.command(ctx, "", args...)
	cmd.Args = append([]string{"nsenter", "--net=/run/netns/" + s.inside, filepath.Join(bin, "runtime")}, args...)
	cmd.Path = "/usr/bin/nsenter"
	if p, err := exec.LookPath("nsenter"); err == nil {
		cmd.Path = p
	}
	return cmd
}

// edge is a runner in a site.
type edge struct {
	*server // only its state directory
	of      *server
	t       *testing.T
	site    *site
	args    []string
	log     string
	process *exec.Cmd
}

// start starts its process.
func (e *edge) start() {
	e.t.Helper()
	log, err := os.OpenFile(e.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		e.t.Fatal(err)
	}
	defer log.Close()
	e.process = e.site.command(context.Background(), e.server, append([]string{"runner", "start"}, e.args...)...)
	e.process.Stdout, e.process.Stderr = log, log
	if err := e.process.Start(); err != nil {
		e.t.Fatal(err)
	}
}

// end ends its process with a signal; its sandboxes go on.
func (e *edge) end(sig syscall.Signal) {
	e.t.Helper()
	if e.process == nil {
		return
	}
	if err := e.process.Process.Signal(sig); err != nil {
		e.t.Error(err)
	}
	_ = e.process.Wait() // of a killed one: how it ended
	e.process = nil
}

// remove ends everything of the runner, of which nothing may be left.
func (e *edge) remove() {
	e.end(syscall.SIGTERM)
	if e.t.Failed() {
		if b, err := os.ReadFile(e.log); err == nil {
			e.t.Logf("log of the runner:\n%s", b)
		}
	}
	in, err := instance.Find(e.state, config.DefaultRunDir())
	if err != nil {
		e.t.Error(err)
		return
	}
	if out, err := e.site.command(context.Background(), e.server, "runner", "stop").CombinedOutput(); err != nil {
		e.t.Errorf("runner stop: %v\n%s", err, out)
	}
	if left, err := leakcheck.List(in); err != nil || len(left) > 0 {
		e.t.Errorf("left by the runner: %v, %v", left, err)
	}
	for _, dir := range []string{in.RunDir, e.state} {
		if err := os.RemoveAll(dir); err != nil {
			e.t.Error(err)
		}
	}
}

// webServer is a program in Perl that prints a line and answers requests to port
// 3000 of the sandbox's loopback address.
const webServer = `
use IO::Socket::INET;
$SIG{PIPE} = "IGNORE";
my $s = IO::Socket::INET->new(LocalAddr => "127.0.0.1", LocalPort => 3000, Listen => 5, ReuseAddr => 1) or die "listen: $!";
$| = 1;
print "started\n";
while (my $c = $s->accept) {
	while (<$c>) { last if /^\r?$/ }
	print $c "HTTP/1.1 200 OK\r\nContent-Length: 13\r\nConnection: close\r\n\r\nfrom the edge";
	close $c;
}
`

// TestRunner runs sandboxes on a machine behind a router that translates
// addresses: made there by the server's scheduler, and used through the server,
// over the one connection that the runner dialled.
func TestRunner(t *testing.T) {
	t.Parallel()
	need.Tools(t, "ip", "nft", "nsenter", "sysctl")
	net := newSite(t)
	port, err := freePort()
	if err != nil {
		t.Fatal(err)
	}
	address := fmt.Sprintf("%s:%d", net.uplink, port)
	g := newGuide(t, nil, "runners")
	g.words["203.0.113.7:7447"], g.words["--token-file token"] = address, "--token-file "+filepath.Join(g.dir, "token")
	s := own(t, "runner", append(g.args("r server start"), "--ssh-address", "127.0.0.1:0")...)
	g.s = s
	g.run("r runner token create")
	e := &edge{
		server: &server{name: "runner-edge", state: filepath.Join(stateRoot, "runner-edge")}, of: s, t: t, site: net, log: filepath.Join(t.TempDir(), "log"),
		args: g.args("r runner start"),
	}
	if err := os.MkdirAll(stateRoot, 0o755); err != nil {
		t.Fatal(err)
	}
	e.start()
	t.Cleanup(e.remove)

	type node struct {
		Name   string
		Spec   struct{ Runner bool }
		Status struct{ Phase string }
	}
	nodes := func() (all []node) {
		s.json(t, &all, "node", "list")
		return all
	}
	wait.For(t, "the runner is ready", func() bool {
		for _, n := range nodes() {
			if n.Name == "edge-1" && n.Status.Phase == "ready" && n.Spec.Runner {
				return true
			}
		}
		return false
	}, wait.Within(2*time.Minute))
	g.run("r runner list", "edge-1")
	e.servesApp(g)
	for _, n := range nodes() {
		if !n.Spec.Runner {
			e.joinsNetwork(n.Name)
		}
	}
	for _, n := range nodes() {
		if !n.Spec.Runner {
			s.r(t, "", "node", "cordon", n.Name)
		}
	}

	sid := strings.TrimSpace(s.r(t, "", "sandbox", "run", "--detach", "--quiet", "--image", "debian", "--wait", "10m", "--", "perl", "-e", webServer))
	exec := func(want string, args ...string) {
		t.Helper()
		contains(t, "exec", s.r(t, "", append([]string{"sandbox", "exec", sid, "--"}, args...)...), want)
	}
	exec("gVisor", "dmesg")
	contains(t, "where it runs", s.r(t, "", "sandbox", "show", sid, "--json"), `"phase": "running"`)
	wait.For(t, "the figures of the runner's machine", func() bool {
		return strings.Contains(s.r(t, "", "node", "metrics", "edge-1"), "disk used")
	}, wait.Within(time.Minute))
	var top struct {
		Machines []struct{ Values map[string]float64 }
	}
	if s.json(t, &top, "top", "--once"); len(top.Machines) != 2 || top.Machines[1].Values["disk_used"] == 0 {
		t.Errorf("machines of r top: %+v", top)
	}
	wait.For(t, "its output", func() bool { return strings.Contains(s.r(t, "", "sandbox", "logs", sid), "started") })
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("over the connection"), 0o644); err != nil {
		t.Fatal(err)
	}
	s.r(t, "", "sandbox", "cp", file, sid+":/tmp/file")
	exec("over the connection", "cat", "/tmp/file")
	c := newSSHClient(t, s)
	s.r(t, "", "ssh", "key", "add", filepath.Join(c.dir, "key.pub"), "--name", "alice")
	cmd := c.command(t, "ssh", "-l", sid, "sandbox", "cat; echo err >&2; exit 7")
	cmd.Stdin = strings.NewReader("by SSH")
	if res := finish(t, cmd); res != (result{"by SSH", "err\n", 7}) {
		t.Errorf("ssh: %s", res)
	}
	p := &previewed{s, sid, "3000-" + strings.Replace(sid, "-", "", 1) + ".localhost"}
	s.r(t, "", "sandbox", "preview", sid, "3000", "--public")
	p.up(t)
	p.says(t, 200, "from the edge", "/")

	reached := func() {
		t.Helper()
		wait.For(t, "the runner is reached again", func() bool {
			return s.try(t, "", "sandbox", "exec", sid, "--", "true").Code == 0
		}, wait.Within(2*time.Minute))
		exec("over the connection", "cat", "/tmp/file")
	}
	// The process of the runner is killed: its sandboxes go on, and the next one adopts them.
	e.end(syscall.SIGKILL)
	e.start()
	reached()
	p.says(t, 200, "from the edge", "/")
	// The server starts again: the runner connects by itself.
	s.r(t, "", "server", "stop", "--keep-running")
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
	reached()
	p.up(t)

	// It is deleted: refused at once, and its sandbox ends.
	g.run("r runner delete")
	wait.For(t, "its sandbox has ended", func() bool {
		return strings.Contains(s.r(t, "", "sandbox", "show", sid, "--json"), `"reason": "node"`)
	})
}
