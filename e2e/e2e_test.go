// Package e2e tests the built binaries from outside, as a person uses them:
// one server for most tests, servers of their own for those that kill things.
// It needs root and bin/ (make toolchain bin/runtime).
package e2e

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/pkg/config"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/instance"
	"miren.dev/runtime/testsupport/leakcheck"
	"miren.dev/runtime/testsupport/private"
)

// bin is the directory of the built binaries.
var bin string

// shared is the server that most tests use.
var shared *server

func TestMain(m *testing.M) {
	if os.Getuid() != 0 {
		fmt.Println("e2e: skipped, needs root")
		os.Exit(0)
	}
	var err error
	if bin, err = filepath.Abs("../bin"); err == nil {
		_, err = os.Stat(filepath.Join(bin, "r"))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e: the binaries are not built (make toolchain bin/runtime):", err)
		os.Exit(1)
	}
	if err := shareImages(); err != nil {
		fmt.Fprintln(os.Stderr, "e2e: cache of base images:", err)
		os.Exit(1)
	}
	h := fnv.New32a()
	h.Write([]byte(bin))
	stateRoot = fmt.Sprintf("/var/tmp/runtime-e2e-%08x", h.Sum32())
	os.Exit(run(m))
}

// shareImages has the servers use the base images that the tests of packages use, which
// hack/test.sh makes before.
func shareImages() error {
	if os.Getenv("RUNTIME_CACHE_DIR") != "" {
		return nil
	}
	dir := os.Getenv("RUNTIME_CACHE")
	if dir == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return err
		}
		dir = filepath.Join(home, ".cache", "miren-runtime")
	}
	return os.Setenv("RUNTIME_CACHE_DIR", dir)
}

func run(m *testing.M) (code int) {
	if private.Inside() { // for one test, which has no use for the shared server
		return m.Run()
	}
	held, err := holdRoot(stateRoot)
	if err == nil {
		defer held.Close()
		err = errors.Join(removeRoot(stateRoot), sweepOthers())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e: sweep of an earlier run:", err)
		return 1
	}
	if shared, err = newServer("shared", "--ssh-address", "127.0.0.1:0"); err == nil {
		err = shared.start()
	}
	code = 1
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e: start the shared server:", err)
	} else {
		code = m.Run()
	}
	if err := shared.remove(); err != nil {
		fmt.Fprintln(os.Stderr, "e2e: stop the shared server:", err)
		code = 1
	}
	if code == 0 {
		if err := os.RemoveAll(stateRoot); err != nil {
			fmt.Fprintln(os.Stderr, "e2e:", err)
			code = 1
		}
	}
	return code
}

// stateRoot holds the state directories of test servers. Its contents belong to
// this run, or to a crashed one of the same checkout.
var stateRoot string

// server is one installation under test.
type server struct {
	name  string
	state string
	port  int // address of the ingress
	api   int // address of the HTTP API
	extra []string
	exe   string   // name of the program in bin; "": r
	env   []string // variables besides the usual ones
}

func newServer(name string, flags ...string) (*server, error) {
	s := &server{name: name, state: filepath.Join(stateRoot, name), extra: flags}
	if err := os.MkdirAll(stateRoot, 0o755); err != nil {
		return s, err
	}
	var err error
	if s.port, err = freePort(); err == nil {
		s.api, err = freePort()
	}
	return s, err
}

// freePort returns a port that stays free until it is used, even repeatedly:
// below the ports that the kernel gives to connections.
func freePort() (int, error) {
	b, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err != nil {
		return 0, err
	}
	var first int
	if _, err := fmt.Sscan(string(b), &first); err != nil {
		return 0, err
	}
	lowest := max(1024, first-10_000)
	if lowest >= first { // the kernel may use every port
		lowest, first = 1024, 1<<16
	}
	for try := 0; ; try++ {
		port := lowest + rand.IntN(first-lowest)
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err == nil {
			return port, l.Close()
		}
		if try == 100 {
			return 0, err
		}
	}
}

func (s *server) startCommand() *exec.Cmd {
	return s.command(context.Background(), "", append([]string{"server", "start",
		"--ingress-http-address", fmt.Sprintf("127.0.0.1:%d", s.port),
		"--api-address", fmt.Sprintf("127.0.0.1:%d", s.api), "--deploy-bake", "500ms"}, s.extra...)...)
}

func (s *server) start() error {
	if out, err := s.startCommand().CombinedOutput(); err != nil {
		return fmt.Errorf("server start: %w\n%s", err, out)
	}
	return nil
}

// remove stops everything of the server and fails if anything is left on the
// host; then it removes the directories.
func (s *server) remove() error {
	in, err := instance.Find(s.state, config.DefaultRunDir())
	if errs.Is(err, errs.NotFound) {
		return os.RemoveAll(s.state)
	}
	if err != nil {
		return err
	}
	out, err := s.command(context.Background(), "", "server", "stop").CombinedOutput()
	if err != nil {
		return fmt.Errorf("server stop: %w\n%s", err, out)
	}
	left, err := leakcheck.List(in)
	if err != nil {
		return err
	}
	if len(left) > 0 {
		return fmt.Errorf("left on the host after server stop: %v", left)
	}
	return errors.Join(os.RemoveAll(in.RunDir), os.RemoveAll(s.state))
}

// command is r with the server's environment, run in dir.
func (s *server) command(ctx context.Context, dir string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(bin, cmp.Or(s.exe, "r")), args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "RUNTIME_STATE_DIR="+s.state, "RUNTIME_SERVER=", "RUNTIME_CLUSTER=",
		"HOME="+s.state+"-home", "XDG_CONFIG_HOME=", "NO_COLOR=1")
	cmd.Env = append(cmd.Env, s.env...)
	return cmd
}

// result is the output and exit code of a command.
type result struct {
	Stdout, Stderr string
	Code           int
}

func (r result) String() string {
	return fmt.Sprintf("exit code %d\n--- stdout\n%s--- stderr\n%s", r.Code, r.Stdout, r.Stderr)
}

// try runs r and returns the result.
func (s *server) try(t *testing.T, dir string, args ...string) result {
	t.Helper()
	// The first deploy of a stack on a machine makes its base image.
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	cmd := s.command(ctx, dir, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("r %s: %v", strings.Join(args, " "), err)
	}
	return result{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

// r runs r and fails the test unless it succeeds; it returns standard output.
func (s *server) r(t *testing.T, dir string, args ...string) string {
	t.Helper()
	res := s.try(t, dir, args...)
	if res.Code != 0 {
		t.Fatalf("r %s: %s", strings.Join(args, " "), res)
	}
	return res.Stdout
}

// json runs r with --json and decodes its output.
func (s *server) json(t *testing.T, into any, args ...string) {
	t.Helper()
	out := s.r(t, "", append(args, "--json")...)
	if err := json.Unmarshal([]byte(out), into); err != nil {
		t.Fatalf("r %s --json: %v in %s", strings.Join(args, " "), err, out)
	}
}

// get requests a path of an app over HTTP.
func (s *server) get(app, path string) (int, string, error) {
	return s.getHost(app+".localhost", path)
}

// getHost returns status and body of a request to a host.
func (s *server) getHost(host, path string) (int, string, error) {
	req, err := http.NewRequest(http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d%s", s.port, path), nil)
	if err != nil {
		return 0, "", err
	}
	req.Host = host
	resp, err := client.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(body), err
}

var client = &http.Client{Timeout: time.Minute, Transport: &http.Transport{MaxIdleConnsPerHost: 64}}

// answers fails the test unless the app answers with a body that holds want.
func (s *server) answers(t *testing.T, app, path, want string) {
	t.Helper()
	code, body, err := s.get(app, path)
	if err != nil || code != http.StatusOK || !strings.Contains(body, want) {
		t.Fatalf("%s%s answered %d %q, %v; want 200 with %q", app, path, code, body, err, want)
	}
}

// copyExample copies an example into a directory of the test, under a name of
// its own, so that tests in parallel do not share an app.
func copyExample(t *testing.T, example string) string {
	t.Helper()
	return copyDir(t, filepath.Join("../examples", example))
}

// copyDir copies a directory, and returns the copy, which has the same name.
func copyDir(t *testing.T, from string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), filepath.Base(from))
	if err := os.CopyFS(dir, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	return dir
}

// edit replaces old by new in a file, which must hold it.
func edit(t *testing.T, path, old, new string) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(b, []byte(old)) {
		t.Fatalf("%s does not hold %q", path, old)
	}
	if err := os.WriteFile(path, bytes.ReplaceAll(b, []byte(old), []byte(new)), 0o644); err != nil {
		t.Fatal(err)
	}
}
