package e2e

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"miren.dev/runtime/pkg/config"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/instance"
	"miren.dev/runtime/testsupport/leakcheck"
)

var (
	chaosTime = flag.Duration("chaos.time", time.Minute, "how long TestChaos operates and kills")
	chaosSeed = flag.Uint64("chaos.seed", 1, "chooses the operations and kills of TestChaos")
)

const (
	chaosClients = 3
	// operationLimit bounds an operation, also on a busy machine and through kills.
	operationLimit = 4 * time.Minute
	// unheldTime bounds how long block devices have one of disk daemon and disk holder only, on a busy machine.
	unheldTime = 5 * time.Second
)

// chaosKills are the processes that TestChaos kills, each as often as its weight says, and
// what their command lines have.
var chaosKills = []struct {
	weight        int
	kind, command string
}{
	{4, "server", " server run"}, {1, "ingress", " ingress run"}, {2, "containerd", "/containerd --config"}, {3, "postgres", "postgres"},
	{1, "buildkitd", "buildkitd"}, {2, "sandbox", "runsc-sandbox"}, {1, "gofer", "runsc-gofer"}, {1, "shim", "containerd-shim"},
	{2, "disk daemon", " lsvd daemon"}, {1, "disk holder", " lsvd holder"},
}

// chaos is a server on which clients operate while its processes are killed.
type chaos struct {
	*server
	t     *testing.T
	in    *instance.Instance
	began time.Time

	mu       sync.Mutex
	log      []string        // operations and kills
	killed   map[string]bool // sandboxes of which a process was killed
	kills    map[string]int
	killedAt map[string]time.Time // the last kill of each kind
	unheldAt time.Time            // disk daemon and disk holder were killed within unheldTime
	outcomes map[string]int       // of operations, by name and class
}

// TestChaos: clients do random operations while random processes are killed. An operation
// fails only in a way that can be repeated, what was acknowledged is there, and when all is
// deleted nothing is left: no entity, nothing on the machine.
func TestChaos(t *testing.T) {
	t.Logf("-chaos.seed %d -chaos.time %s", *chaosSeed, *chaosTime)
	c := &chaos{t: t, killed: map[string]bool{}, kills: map[string]int{}, killedAt: map[string]time.Time{}, outcomes: map[string]int{}}
	c.server = own(t, "chaos", "--ingress-drain-timeout", "2s")
	var err error
	if c.in, err = instance.Find(c.state, config.DefaultRunDir()); err != nil {
		t.Fatal(err)
	}
	defer c.report()
	source := t.TempDir()
	copyLoadApp(t, source)
	c.useEverything(source)
	before := c.host()

	c.began = time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), *chaosTime)
	defer cancel()
	clients := make([]*chaosClient, chaosClients)
	var working, disturbing sync.WaitGroup
	for i := range clients {
		clients[i] = newChaosClient(c, i, *chaosSeed, source)
		working.Go(func() { clients[i].run(ctx) })
	}
	disturbing.Go(func() { c.killAtRandom(ctx, rand.New(rand.NewPCG(*chaosSeed, 1000))) })
	disturbing.Go(func() { c.watch(ctx) })
	working.Wait()
	disturbing.Wait()
	if err := c.start(); err != nil {
		t.Fatal(err)
	}
	c.healthy(t)
	for _, client := range clients {
		client.check()
	}
	c.checkNames()
	c.deleteEverything()
	c.checkEntities()
	c.checkHost(before)
	c.checkSecrets()
	c.checkDoctor()
}

// report prints what happened.
func (c *chaos) report() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t.Logf("killed %v; operations %v", c.kills, c.outcomes)
	if c.t.Failed() {
		c.t.Logf("the operations:\n%s", strings.Join(c.log, "\n"))
	}
}

func (c *chaos) note(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.log = append(c.log, fmt.Sprintf("%7.2f ", time.Since(c.began).Seconds())+fmt.Sprintf(format, args...))
}

// problem notes what may not be. -v shows it at once, with what was killed just before.
func (c *chaos) problem(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	c.mu.Lock()
	kills := slices.DeleteFunc(slices.Clone(c.log[max(0, len(c.log)-60):]), func(s string) bool { return !strings.Contains(s, " KILL ") })
	c.mu.Unlock()
	c.note("PROBLEM %s", text)
	c.t.Errorf("after %.2f s: %s\nthe last kills:\n%s", time.Since(c.began).Seconds(), text, strings.Join(kills, "\n"))
}

func (c *chaos) wasKilled(sandbox string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.killed[sandbox]
}

// lostDevice reports whether f is an error that docs/architecture.md permits: disk daemon and disk holder were killed
// within a moment, a minute ago at most. A file system that cannot read where it has room says that it has none.
func (c *chaos) lostDevice(f *failure) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return f.Class == "" && (strings.Contains(f.Message, "I/O error") || strings.Contains(f.Message, "No space left on device")) &&
		time.Since(c.unheldAt) < time.Minute
}

// killing notes a kill. The caller holds mu.
func (c *chaos) killing(kind string) {
	c.kills[kind]++
	now := time.Now()
	c.killedAt[kind] = now
	if other := map[string]string{"disk daemon": "disk holder", "disk holder": "disk daemon"}[kind]; other != "" && now.Sub(c.killedAt[other]) < unheldTime {
		c.unheldAt = now
	}
}

// failure is how r failed.
type failure struct {
	Class   errs.Class
	Message string
	Code    int // exit code
}

func (f *failure) String() string {
	return fmt.Sprintf("%s (exit code %d): %s", f.Class, f.Code, f.Message)
}

// internal matches the failure of a deployment that is no fault of the app: its hint says
// that r deploy tries again.
var internal = regexp.MustCompile(`"reason": ?"internal"`)

// chaosInput is what a command reads besides its arguments.
type chaosInput struct {
	dir   string // it is run here
	stdin string
}

func (c *chaos) call(ctx context.Context, args ...string) (string, *failure) {
	return c.callIn(ctx, chaosInput{}, args...)
}

// callIn runs r. A command inside a sandbox that fails is a failure without a class.
func (c *chaos) callIn(ctx context.Context, in chaosInput, args ...string) (string, *failure) {
	ctx, cancel := context.WithTimeout(ctx, operationLimit)
	defer cancel()
	cmd := c.command(ctx, in.dir, append([]string{"--json"}, args...)...)
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if in.stdin != "" {
		cmd.Stdin = strings.NewReader(in.stdin)
	}
	err := cmd.Run()
	if err == nil {
		return stdout.String(), nil
	}
	f := &failure{Code: cmd.ProcessState.ExitCode(), Message: stderr.String()}
	for line := range strings.Lines(stderr.String()) {
		var d struct {
			Error struct {
				Class   errs.Class
				Message string
			}
		}
		if json.Unmarshal([]byte(line), &d) == nil && d.Error.Class != "" {
			f.Class, f.Message = d.Error.Class, d.Error.Message
		}
	}
	if f.Class == "" { // what ran, or was rolled out, says how it failed
		f.Message += stdout.String()[max(0, stdout.Len()-2000):]
		if internal.MatchString(f.Message) {
			f.Class = errs.Unavailable
		}
	}
	if ctx.Err() != nil {
		f.Class, f.Message = errs.Internal, fmt.Sprintf("it hangs: %s", f.Message)
	}
	return stdout.String(), f
}

// killAtRandom kills a process every few seconds.
func (c *chaos) killAtRandom(ctx context.Context, rng *rand.Rand) {
	sum := 0
	for _, k := range chaosKills {
		sum += k.weight
	}
	for {
		wait, at, which := time.Duration(500+rng.IntN(3000))*time.Millisecond, rng.IntN(sum), rng.Int()
		if pause(ctx, wait) != nil {
			return
		}
		for _, k := range chaosKills {
			if at -= k.weight; at < 0 {
				c.killOne(k.kind, k.command, which)
				break
			}
		}
	}
}

func (c *chaos) killOne(kind, command string, which int) {
	items, err := leakcheck.List(c.in)
	if err != nil {
		c.note("no kill: %v", err) // of objects that vanish meanwhile
		return
	}
	var found []string
	for _, i := range items {
		if i.Kind == "process" && strings.Contains(i.Name, command) {
			found = append(found, i.Name)
		}
	}
	if len(found) == 0 {
		return
	}
	name := found[which%len(found)]
	number, _, _ := strings.Cut(name, " ")
	pid, err := strconv.Atoi(number)
	if err != nil {
		c.problem("process %q", name)
		return
	}
	c.mu.Lock()
	c.killing(kind)
	for _, id := range sandboxID.FindAllString(name, -1) {
		c.killed[id] = true
	}
	c.mu.Unlock()
	c.note("KILL %s %.160s", kind, name)
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil || kind != "server" {
		return // it has ended, or the server starts it again
	}
	for began := time.Now(); !ended(pid); {
		if time.Since(began) > time.Minute {
			c.problem("the killed server does not end: process %d waits in the kernel", pid)
			return
		}
		_ = pause(context.Background(), 5*time.Millisecond)
	}
	// On a busy machine, parts that were killed a moment ago may not work when `r server start` has waited for them.
	for began := time.Now(); ; {
		err := c.start()
		if err == nil {
			return
		}
		if time.Since(began) > 2*time.Minute {
			c.problem("after the kill of %s: %v", kind, err)
			return
		}
		c.note("%v", err)
	}
}

// useEverything has the server use each part once, so that the machine then has what stays.
func (c *chaos) useEverything(source string) {
	t := c.t
	c.r(t, "", "disk", "create", "first", "--size", "64M")
	box := strings.TrimSpace(c.r(t, "", "sandbox", "create", "--template", "shell", "--volume", "first:/data"))
	c.r(t, "", "sandbox", "pause", box)
	c.r(t, "", "sandbox", "resume", box)
	c.r(t, "", "sandbox", "delete", box)
	c.r(t, "", "disk", "delete", "first", "--yes")
	c.r(t, source, "app", "deploy", "--app", "first")
	c.r(t, "", "app", "delete", "first", "--yes")
	c.r(t, "", "addon", "create", "valkey", "first", "--size", "64M", "--memory", "96M")
	c.r(t, "", "addon", "delete", "first", "--yes")
	c.deleteEverything()
	c.idle()
}

// copySource copies the source of the app for a client.
func copySource(t *testing.T, source string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "app")
	if err := os.CopyFS(dir, os.DirFS(source)); err != nil {
		t.Fatal(err)
	}
	return dir
}
