package e2e

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"miren.dev/runtime/testsupport/wait"
)

// hostServer is a program in Perl that answers each request with the name of its machine; one for
// /slow after a while, once it has made a file.
const hostServer = `
use IO::Socket::INET;
use Sys::Hostname;
$SIG{PIPE} = $SIG{CHLD} = "IGNORE";
my $s = IO::Socket::INET->new(LocalAddr => "0.0.0.0", LocalPort => $ENV{PORT}, Listen => 50, ReuseAddr => 1) or die "listen: $!";
print STDERR "serves as ", hostname, "\n";
while (1) {
	my $c = $s->accept or next;
	if (fork) { close $c; next }
	my $path = (split / /, <$c>)[1];
	while (<$c>) { last if /^\r?$/ }
	if ($path eq "/slow") { open my $f, ">", "/tmp/slow"; close $f; sleep 5 }
	elsif ($path eq "/") { select undef, undef, undef, 0.3 }
	my $h = hostname;
	print $c "HTTP/1.1 200 OK\r\nContent-Length: " . length($h) . "\r\n\r\n$h";
	exit;
}
`

// servingSandbox is a sandbox of an app.
type servingSandbox struct {
	ID   string
	Spec struct{ Runner bool }
}

// servesApp deploys an app of which one sandbox is on the runner, and gets answers from both: until the
// runner is killed, and again once it is back. Requests under way there fail, and no others.
func (e *edge) servesApp(g *guide) {
	t, s := e.t, g.s
	t.Helper()
	s.r(t, "", "app", "create", "shop")
	g.run("r runner allow", "shop may run on edge-1")
	if out := s.r(t, "", "runner", "list"); !strings.Contains(out, "shop") {
		t.Errorf("the list of runners: %s", out)
	}
	dir := t.TempDir()
	write(t, filepath.Join(dir, "app.toml"), "[services.web]\nreplicas = 2\nhealth_path = \"/healthz\"\ncommand = '''perl -e '"+hostServer+"' '''\n")
	s.r(t, dir, "deploy", "--image", "debian", "--app", "shop")
	list := func() (here, there []string) {
		var all []servingSandbox
		s.json(t, &all, "sandbox", "list", "--app", "shop")
		ready := s.sandboxes(t, "shop")
		for _, sb := range all {
			switch {
			case !slices.Contains(ready, sb.ID):
			case sb.Spec.Runner:
				there = append(there, sb.ID)
			default:
				here = append(here, sb.ID)
			}
		}
		return here, there
	}
	here, there := list()
	if len(here) != 1 || len(there) != 1 {
		t.Fatalf("on the server %v, on the runner %v", here, there)
	}
	// ask sends n requests at once, and counts the answers.
	ask := func(n int, path string) map[string]int {
		var mu sync.Mutex
		var wg sync.WaitGroup
		got := map[string]int{}
		for range n {
			wg.Go(func() {
				code, body, err := s.get("shop", path)
				answer := body
				if err != nil || code != 200 {
					answer = fmt.Sprint(code, " ", err)
				}
				mu.Lock()
				defer mu.Unlock()
				got[answer]++
			})
		}
		wg.Wait()
		return got
	}
	both := func() {
		t.Helper()
		wait.NoError(t, "both sandboxes answer", func() error {
			got := ask(16, "/")
			if len(got) != 2 || got["502 <nil>"]+got["503 <nil>"] != 0 {
				return fmt.Errorf("answers: %v", got)
			}
			return nil
		}, wait.Within(2*time.Minute))
	}
	both()
	wait.NoError(t, "r logs has what both sandboxes print", func() error {
		out := s.r(t, "", "logs", "shop", "--json")
		for _, sb := range []string{here[0], there[0]} {
			if !strings.Contains(out, sb) {
				return fmt.Errorf("nothing of %s in %s", sb, out)
			}
		}
		return nil
	}, wait.Within(converge))
	if got := ask(1, "/quick"); len(got) != 1 {
		t.Errorf("a request: %v", got)
	}

	slow := make(chan map[string]int, 1)
	go func() { slow <- ask(16, "/slow") }()
	wait.For(t, "a slow request is at the runner", func() bool {
		return s.try(t, "", "sandbox", "exec", there[0], "--", "test", "-e", "/tmp/slow").Code == 0
	})
	e.end(syscall.SIGKILL)
	for range 20 {
		if got := ask(1, "/quick"); len(got) != 1 || strings.HasPrefix(fmt.Sprint(got), "map[50") {
			t.Errorf("after the runner was killed: %v", got)
		}
	}
	got := wait.Receive(t, "the slow answers", slow)
	if failed := got["502 <nil>"]; failed == 0 || len(got) != 2 {
		t.Errorf("answers to requests of which some were at the runner: %v", got)
	}
	e.start()
	both()

	g.run("r runner deny", "no more sandboxes of shop")
	s.r(t, "", "app", "restart", "shop")
	if here, there := list(); len(here) != 2 || len(there) != 0 {
		t.Errorf("after the runner may not run the app: on the server %v, on the runner %v", here, there)
	}
	s.r(t, "", "app", "delete", "shop", "--yes")
}
