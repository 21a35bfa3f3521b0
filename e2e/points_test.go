package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/pkg/config"
	"miren.dev/runtime/pkg/fault"
	"miren.dev/runtime/pkg/instance"
	"miren.dev/runtime/testsupport/leakcheck"
	"miren.dev/runtime/testsupport/wait"
)

// The tests of this file use the program with fault points (pkg/fault), which
// kills itself at the point that a file names. The points are not listed here:
// a first, undisturbed run records those that it reaches.

// faulty is a server of the program with fault points.
type faulty struct {
	*server
	file string // the file that arms a point
	in   *instance.Instance
}

// newFaulty starts one; change changes it before.
func newFaulty(t *testing.T, name string, change ...func(*server)) *faulty {
	t.Helper()
	if _, err := os.Stat(filepath.Join(bin, "runtime-faults")); err != nil {
		t.Fatal("bin/runtime-faults is not built (hack/build.sh --faults):", err)
	}
	s, err := newServer(name)
	if err != nil {
		t.Fatal(err)
	}
	f := &faulty{server: s, file: filepath.Join(t.TempDir(), "fault")}
	// Without namespaces that are made in the background, at points of no sandbox.
	s.exe, s.env = "runtime-faults", []string{fault.Env + "=" + f.file, "RUNTIME_NETWORK_PARKED=0"}
	for _, c := range change {
		c(s)
	}
	s.begin(t)
	if f.in, err = instance.Find(s.state, config.DefaultRunDir()); err != nil {
		t.Fatal(err)
	}
	return f
}

func (f *faulty) arm(t *testing.T, what string) {
	t.Helper()
	for _, old := range []string{f.file + ".hit", f.file + ".seen"} {
		if err := os.RemoveAll(old); err != nil {
			t.Fatal(err)
		}
	}
	write(t, f.file+".new", what)
	if err := os.Rename(f.file+".new", f.file); err != nil {
		t.Fatal(err)
	}
}

// trace returns the points that are reached while what runs, in order.
func (f *faulty) trace(t *testing.T, what func()) []string {
	t.Helper()
	f.arm(t, "trace")
	what()
	points := f.seen(t)
	// The last step may not have ended yet. One that has failed has no end.
	for began := time.Now(); slices.ContainsFunc(points, func(p string) bool {
		step, before := strings.CutSuffix(p, "/"+fault.Before)
		return before && !slices.Contains(points, step+"/"+fault.After)
	}) && time.Since(began) < 5*time.Second; points = f.seen(t) {
		if err := pause(t.Context(), 50*time.Millisecond); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Remove(f.file); err != nil {
		t.Fatal(err)
	}
	return points
}

// seen returns the points that were reached, each once.
func (f *faulty) seen(t *testing.T) []string {
	t.Helper()
	b, err := os.ReadFile(f.file + ".seen")
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for p := range strings.Lines(string(b)) {
		if p = strings.TrimSpace(p); !slices.Contains(out, p) {
			out = append(out, p)
		}
	}
	return out
}

// has fails the test unless each of the names is before and after in points.
func has(t *testing.T, points []string, area string, names ...string) {
	t.Helper()
	for _, n := range names {
		for _, when := range []string{fault.Before, fault.After} {
			if p := area + "/" + n + "/" + when; !slices.Contains(points, p) {
				t.Errorf("point %s is not reached; there are %v", p, points)
			}
		}
	}
}

// attempt runs r; the server may die meanwhile.
func (f *faulty) attempt(t *testing.T, args ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if out, err := f.command(ctx, "", args...).CombinedOutput(); err != nil {
		t.Logf("r %s: %v: %s", strings.Join(args, " "), err, out)
	}
}

// killedAt runs what with a point armed, waits for the server's death there,
// and starts the server again.
func (f *faulty) killedAt(t *testing.T, point string, what func()) {
	t.Helper()
	pid := f.pid(t, "server")
	f.arm(t, point)
	what()
	wait.NoError(t, "the server kills itself at "+point, func() error {
		if _, err := os.Stat(f.file + ".hit"); err != nil {
			return fmt.Errorf("the server does not get to %s", point)
		}
		if !ended(pid) {
			return fmt.Errorf("process %d got to %s and is still there", pid, point)
		}
		return nil
	}, wait.Within(5*time.Minute))
	if err := f.start(); err != nil {
		t.Fatal(err)
	}
}

// ended reports whether a process has ended with all of its threads. A process
// whose first thread is a zombie may have others that still hold its files.
func ended(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return true
	}
	threads, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	return strings.Contains(string(b), ") Z ") && len(threads) <= 1
}

var (
	sandboxID = regexp.MustCompile(`sb-[0-9a-hjkmnp-tv-z]{16}`)
	variable  = regexp.MustCompile(`\b10(\.\d+){3}\b|x[0-9a-f]{4}$`)
	parked    = regexp.MustCompile(`parked\.[0-9a-z]+`) // a network that waits for a sandbox
)

// general returns a line without what differs from one sandbox to the next.
func general(line string) string {
	line = parked.ReplaceAllString(line, "parked.N")
	return variable.ReplaceAllString(sandboxID.ReplaceAllString(line, "SANDBOX"), "N")
}

// The end of a parked network's name may look like that of an interface.
func TestParkedNetworksAreAlike(t *testing.T) {
	for _, name := range []string{"parked.k3x9f", "parked.k3x00ff", "parked.x1234"} {
		if got, want := general("netns /run/runtime/i/netns/"+name), "netns /run/runtime/i/netns/parked.N"; got != want {
			t.Errorf("%s became %q, not %q", name, got, want)
		}
	}
}

// idleBuildNetwork matches the network of a build step, which BuildKit keeps for
// five minutes for the next step.
var idleBuildNetwork = regexp.MustCompile(`^(file .*/buildkit/addresses/[^/]+/N|mount .*/buildkit/net/cni/[^/]+)$`)

// host lists the parts of the installation on the machine: the kernel's
// objects, its run directory, and containerd's objects of sandboxes. Ids and
// addresses are left out of the lines, so that lists can be compared; ids has
// the ids.
func (f *faulty) host(t *testing.T) (lines []string, ids map[string]bool) {
	t.Helper()
	items, err := leakcheck.List(f.in)
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range items {
		if i.Kind == "process" {
			// Flags come in any order, and connections of PostgreSQL come and go.
			if strings.Contains(i.Name, "postgres: ") {
				continue
			}
			_, command, _ := strings.Cut(i.Name, " ")
			i.Name, _, _ = strings.Cut(command, " ")
		}
		lines = append(lines, i.String())
	}
	err = filepath.WalkDir(f.in.RunDir, func(path string, e os.DirEntry, err error) error {
		if err != nil {
			return nil // removed during the listing
		}
		lines = append(lines, "file "+path)
		if e.Name() == "rootfs" { // its contents are listed as a mount
			return filepath.SkipDir
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, what := range [][]string{{"containers", "list", "-q"}, {"tasks", "list", "-q"}, {"snapshots", "list"}} {
		args := append([]string{"--address", f.in.Socket("containerd", "containerd.sock"), "--namespace", f.in.Name("")}, what...)
		out, err := exec.CommandContext(t.Context(), filepath.Join(bin, "ctr"), args...).CombinedOutput()
		if err != nil {
			t.Fatalf("ctr %v: %v: %s", what, err, out)
		}
		for l := range strings.Lines(string(out)) {
			if w := strings.Fields(l); len(w) > 0 && sandboxID.MatchString(w[0]) {
				lines = append(lines, what[0]+" "+w[0])
			}
		}
	}
	ids = map[string]bool{}
	for i, l := range lines {
		for _, sid := range sandboxID.FindAllString(l, -1) {
			ids[sid] = true
		}
		lines[i] = general(l)
	}
	lines = slices.DeleteFunc(lines, idleBuildNetwork.MatchString)
	slices.Sort(lines)
	return lines, ids
}

// difference returns the lines that are in only one of two lists.
func difference(got, want []string) string {
	var b strings.Builder
	for _, l := range slices.Compact(slices.Sorted(slices.Values(append(slices.Clone(got), want...)))) {
		count := func(in []string) (n int) {
			for _, x := range in {
				if x == l {
					n++
				}
			}
			return n
		}
		if g, w := count(got), count(want); g != w {
			fmt.Fprintf(&b, "%d, want %d: %s\n", g, w, l)
		}
	}
	return b.String()
}

// alone waits until there is only one sandbox, and lists the host.
func (f *faulty) alone(t *testing.T) (lines []string) {
	t.Helper()
	wait.NoError(t, "one sandbox is left", func() error {
		var ids map[string]bool
		if lines, ids = f.host(t); len(ids) != 1 {
			return fmt.Errorf("sandboxes on the host: %v", ids)
		}
		return nil
	}, wait.Within(converge))
	return lines
}

// clean waits until the machine is in its state from before the test.
func (f *faulty) clean(t *testing.T, want []string) {
	t.Helper()
	wait.NoError(t, "the machine has what it had before the test", func() error {
		if got, _ := f.host(t); !slices.Equal(got, want) {
			return fmt.Errorf("on the host:\n%s", difference(got, want))
		}
		return nil
	}, wait.Within(converge))
}

// inPhase waits until the sandbox of that name is in a phase.
func (f *faulty) inPhase(t *testing.T, name, phase string) {
	t.Helper()
	f.inPhaseWithin(t, converge, name, phase)
}

func (f *faulty) inPhaseWithin(t *testing.T, within time.Duration, name, phase string) {
	t.Helper()
	wait.NoError(t, fmt.Sprintf("sandbox %s is %s", name, phase), func() error {
		var list []struct {
			Name   string `json:"name"`
			Status struct {
				Phase   string `json:"phase"`
				Message string `json:"message"`
			} `json:"status"`
		}
		f.json(t, &list, "entity", "list", "sandbox")
		for _, sb := range list {
			if sb.Name == name && sb.Status.Phase == phase {
				return nil
			}
		}
		return fmt.Errorf("no sandbox %s is %s: %+v", name, phase, list)
	}, wait.Within(within))
}

// TestServerKilledInSandboxSteps kills the server before and after each step of
// setting a sandbox up, stopping it and removing it. An app beside it keeps
// answering, and in the end nothing is left.
func TestServerKilledInSandboxSteps(t *testing.T) {
	t.Parallel()
	f := newFaulty(t, "sandbox-points")
	dir := copyExample(t, "static-site")
	f.r(t, dir, "app", "deploy", "--app", "steady")
	start := func(name string) {
		f.attempt(t, "sandbox", "run", "--detach", "--name", name, "--image", "debian", "--", "sleep", "600")
	}
	// Once, for the objects that the first sandbox leaves for the others, such
	// as its image, which takes minutes to make on a new machine.
	f.r(t, "", "sandbox", "run", "--detach", "--name", "first", "--image", "debian", "--", "sleep", "600")
	f.inPhaseWithin(t, wait.Limit, "first", "running")
	f.r(t, "", "sandbox", "delete", "first")
	want := f.alone(t)

	up := f.trace(t, func() { start("traced"); f.inPhase(t, "traced", "running") })
	has(t, up, "sandbox", "placed", "creating", "running")
	has(t, up, "setup", "network", "address", "cgroup", "rootfs", "agent", "files", "container", "task", "task-record", "connect", "main")
	stop := f.trace(t, func() {
		f.r(t, "", "sandbox", "stop", "traced")
		f.inPhase(t, "traced", "stopped")
		f.clean(t, want)
	})
	has(t, stop, "sandbox", "stopping", "stopped")
	f.r(t, "", "sandbox", "delete", "traced")
	down := slices.DeleteFunc(slices.Clone(stop), func(p string) bool { return strings.HasPrefix(p, "sandbox/") })
	stop = slices.DeleteFunc(stop, func(p string) bool { return !strings.HasPrefix(p, "sandbox/") })
	has(t, down, "teardown", "network", "cgroup", "rootfs", "agent", "files", "container", "task")

	for i := range max(len(up), len(stop), len(down)) {
		name := fmt.Sprintf("victim-%d", i)
		stopWatch := f.watchApp("steady")
		if i < len(up) {
			t.Run(up[i], func(t *testing.T) { f.killedAt(t, up[i], func() { start(name) }) })
		} else {
			start(name)
		}
		f.inPhase(t, name, "running")
		if i < len(stop) {
			t.Run(stop[i], func(t *testing.T) {
				f.killedAt(t, stop[i], func() { f.attempt(t, "sandbox", "stop", "--detach", name) })
				f.inPhase(t, name, "stopped")
			})
			f.r(t, "", "sandbox", "delete", name)
			name += "-b"
			start(name)
			f.inPhase(t, name, "running")
		}
		if i < len(down) {
			t.Run(down[i], func(t *testing.T) { f.killedAt(t, down[i], func() { f.attempt(t, "sandbox", "delete", name) }) })
		} else {
			f.r(t, "", "sandbox", "delete", name)
		}
		f.clean(t, want)
		if failed, all := stopWatch(); failed > 0 {
			t.Errorf("round %d: %d of %d requests failed", i, failed, all)
		}
	}
}

// rollout holds the parts of a deployment that the tests need.
type rollout struct {
	CreateRevision int64 `json:"create_revision"`
	Spec           struct {
		Kind string `json:"kind"`
	} `json:"spec"`
	Status struct {
		Phase   string `json:"phase"`
		Failure struct {
			Message string `json:"message"`
			Hint    string `json:"hint"`
		} `json:"failure"`
	} `json:"status"`
}

// rollouts returns all deployments, newest first.
func (f *faulty) rollouts(t *testing.T) []rollout {
	t.Helper()
	var list []rollout
	f.json(t, &list, "entity", "list", "deployment")
	slices.SortFunc(list, func(a, b rollout) int { return int(b.CreateRevision - a.CreateRevision) })
	return list
}

// ends waits until there are n deployments and the newest has ended in phase.
func (f *faulty) ends(t *testing.T, within time.Duration, n int, phase string) {
	t.Helper()
	var last rollout
	wait.NoError(t, fmt.Sprintf("deployment %d is %s", n, phase), func() error {
		list := f.rollouts(t)
		if last = list[0]; len(list) != n || last.Status.Phase != phase {
			return fmt.Errorf("%d deployments, the newest %+v; want %d, %s", len(list), last, n, phase)
		}
		return nil
	}, wait.Within(within))
	if phase == "failed" && (last.Status.Failure.Message == "" || last.Status.Failure.Hint == "") {
		t.Errorf("failed without an explanation: %+v", last)
	}
}

// TestServerKilledInRollout kills the server before and after each write of a
// rollout: restart, rollback, change of the environment, a cancelled one, a
// failed one. The app answers all the time, the deployment ends as without the
// kill, and nothing is left.
func TestServerKilledInRollout(t *testing.T) {
	t.Parallel()
	f := newFaulty(t, "rollout-points")
	dir := copyExample(t, "static-site")
	f.r(t, dir, "app", "deploy", "--app", "app")
	detached := func(args ...string) func() {
		return func() { f.attempt(t, append([]string{"app"}, append(args, "--app", "app", "--detach")...)...) }
	}
	if err := os.MkdirAll(filepath.Join(dir, ".runtime"), 0o755); err != nil {
		t.Fatal(err)
	}
	unhealthy := func(deadline string) {
		write(t, filepath.Join(dir, ".runtime", "app.toml"), fmt.Sprintf("[services.web]\nhealth_path = \"/no-such-page\"\nhealth_deadline = %q\n", deadline))
		detached("deploy", "--dir", dir)()
	}
	f.r(t, "", "app", "env", "set", "--app", "app", "A=A") // a version to roll back from
	want := f.alone(t)
	value := 0
	for _, c := range []struct {
		name    string
		prepare func()
		run     func()
		phase   string
		points  []string // beginnings of the names of the points that count
	}{
		{"restart", nil, detached("restart"), "succeeded", []string{"deployment/", "pool/", "sandbox/placed/", "sandbox/ready/"}},
		{"rollback", nil, detached("rollback"), "succeeded", []string{"deployment/starting/", "deployment/draining/"}},
		{"environment", nil, func() {
			value++ // an unchanged value is not rolled out
			detached("env", "set", fmt.Sprint("A=", value))()
		}, "succeeded", []string{"deployment/accept/"}},
		{"cancel", func() {
			// Until it has a sandbox: earlier writes of the deployment are not
			// points of its cancellation.
			unhealthy("1h")
			wait.NoError(t, "the deployment has a sandbox", func() error {
				_, ids := f.host(t)
				if last := f.rollouts(t)[0]; last.Status.Phase != "starting" || len(ids) < 2 {
					return fmt.Errorf("%+v, sandboxes on the host: %v", last, ids)
				}
				return nil
			}, wait.Within(5*time.Minute))
		}, func() { f.attempt(t, "app", "cancel", "--app", "app") }, "canceled", []string{"deployment/"}},
		{"failure", nil, func() { unhealthy("1s") }, "failed", []string{"deployment/failed/", "deployment/retire/"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := len(f.rollouts(t)) + 1
			prepare := func() {
				if c.prepare != nil {
					c.prepare()
				}
			}
			prepare()
			points := f.trace(t, func() {
				c.run()
				f.ends(t, 5*time.Minute, n, c.phase)
				f.clean(t, want)
			})
			points = slices.DeleteFunc(points, func(p string) bool {
				return !slices.ContainsFunc(c.points, func(begin string) bool { return strings.HasPrefix(p, begin) })
			})
			if len(points) < 2 {
				t.Fatalf("points: %v", points)
			}
			for _, p := range points {
				t.Run(p, func(t *testing.T) {
					n := len(f.rollouts(t)) + 1
					stop := f.watchApp("app")
					prepare()
					f.killedAt(t, p, c.run)
					phase := c.phase
					if p == "deployment/accept/before" {
						n, phase = n-1, "succeeded" // as if it had never been requested
					}
					f.ends(t, converge, n, phase)
					f.clean(t, want)
					if failed, all := stop(); failed > 0 {
						t.Errorf("%d of %d requests failed", failed, all)
					}
				})
			}
		})
	}
}
