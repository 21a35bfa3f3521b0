package daemon_test

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"miren.dev/runtime/lsvd/frontend/holder"
	"miren.dev/runtime/lsvd/frontend/loop"
	"miren.dev/runtime/lsvd/node/daemon"
	"miren.dev/runtime/lsvd/node/host"
	"miren.dev/runtime/testsupport/attachtest"
	"miren.dev/runtime/testsupport/private"
	"miren.dev/runtime/testsupport/wait"
)

// Environment of the processes that tests start: the test binary again.
const (
	stateEnv    = "LSVD_TEST_STATE"    // directory; makes it a daemon
	storeEnv    = "LSVD_TEST_STORE"    // URL; the daemon attaches the volume "data" of it first
	keepEnv     = "LSVD_TEST_KEEP"     // directory; makes it a holder
	patienceEnv = "LSVD_TEST_PATIENCE" // of the holder
)

func TestMain(m *testing.M) {
	var err error
	switch {
	case os.Getenv(stateEnv) != "":
		err = serve(os.Getenv(stateEnv))
	case os.Getenv(keepEnv) != "":
		var patience time.Duration
		if patience, err = time.ParseDuration(os.Getenv(patienceEnv)); err == nil {
			err = holder.Run(context.Background(), holder.Socket(os.Getenv(keepEnv)), holder.Options{HandoverTimeout: patience, Idle: 20 * time.Second})
		}
	default:
		os.Exit(private.Main(m))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// serve is a disk daemon until it is killed, or told to end by SIGTERM.
func serve(dir string) error {
	logger := slog.New(slog.NewTextHandler(os.Stderr, nil))
	if err := loop.Prepare(logger); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	keeper, err := holder.Dial(ctx, holder.Socket(dir))
	if err != nil {
		return err
	}
	d, err := newDaemon(dir, daemon.Config{Holder: keeper, Logger: logger})
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	select {
	case <-d.Ready():
	case err := <-ended:
		return err
	}
	device := ""
	if url := os.Getenv(storeEnv); url != "" {
		i, err := d.Attach(ctx, daemon.Request{Volume: "data", Spec: daemon.Spec{Store: url, Block: true}})
		if err != nil {
			return err
		}
		device = i.Frontends[0].Address
	}
	fmt.Println(device)
	return <-ended
}

// newDaemon makes a daemon with its state and run directories below dir.
func newDaemon(dir string, cfg daemon.Config) (*daemon.Daemon, error) {
	state, err := host.Open(filepath.Join(dir, "state"))
	if err != nil {
		return nil, err
	}
	cfg.State, cfg.RunDir, cfg.CloseTimeout = state, filepath.Join(dir, "run"), 5*time.Second
	return daemon.New(cfg)
}

// run runs a daemon in the process of the test until the test ends.
func (m *machine) run(t *testing.T, cfg daemon.Config) *daemon.Daemon {
	t.Helper()
	d, _ := m.begin(t, cfg)
	return d
}

// begin runs a daemon in the process of the test until end is called, or the test ends.
func (m *machine) begin(t *testing.T, cfg daemon.Config) (d *daemon.Daemon, end func()) {
	t.Helper()
	cfg.Holder, cfg.Logger = m.held, slog.New(slog.NewTextHandler(t.Output(), nil))
	d, err := newDaemon(m.dir, cfg)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	ctx, stop := context.WithCancel(context.Background())
	end = sync.OnceFunc(func() {
		stop()
		if err := wait.Receive(t, "the end of the daemon", ended); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(end)
	go func() { ended <- d.Run(ctx) }()
	wait.Receive(t, "the daemon is ready", d.Ready())
	return d, end
}

// machine is where daemons run one after the other, with a holder.
type machine struct {
	dir   string // state, run directory and the holder's socket
	owner string // of what is attached
	held  *holder.Client
}

// newMachine starts a holder with a patience.
func newMachine(t *testing.T, patience time.Duration) *machine {
	t.Helper()
	attachtest.Need(t)
	m := &machine{dir: t.TempDir(), owner: attachtest.Owner(t)}
	if err := os.MkdirAll(filepath.Join(m.dir, "state"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(m.dir, "state", "id"), []byte(m.owner+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	m.held = attachtest.Holder(t, m.dir, keepEnv+"="+m.dir, patienceEnv+"="+patience.String())
	return m
}

func (m *machine) entries(t *testing.T, ctx context.Context) []holder.Entry {
	t.Helper()
	entries, err := m.held.List(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return entries
}

// claimed reports whether a daemon has the device at the holder.
func (m *machine) claimed(t *testing.T) bool {
	t.Helper()
	e := m.entries(t, t.Context())
	return len(e) == 1 && e[0].Owned
}

// process is a daemon.
type process struct {
	cmd    *exec.Cmd
	device chan string // receives the device of the volume that it has attached
	done   chan struct{}
	log    string // file
}

// start starts a daemon; with a store it attaches the volume "data" of it.
func (m *machine) start(t *testing.T, store string) *process {
	t.Helper()
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	p := &process{cmd: exec.Command(attachtest.Executable(t)), device: make(chan string, 1), done: make(chan struct{}), log: log.Name()}
	p.cmd.Env = append(os.Environ(), stateEnv+"="+m.dir, storeEnv+"="+store)
	p.cmd.Stderr = log
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.end(t, syscall.SIGKILL)
		if t.Failed() {
			t.Logf("daemon %d:\n%s", p.cmd.Process.Pid, p.messages(t))
		}
	})
	go func() {
		defer close(p.done)
		for s := bufio.NewScanner(out); s.Scan(); {
			p.device <- s.Text() // the only line
		}
		p.cmd.Wait()
	}()
	return p
}

// end ends the daemon and waits until it has.
func (p *process) end(t *testing.T, s os.Signal) {
	t.Helper()
	p.cmd.Process.Signal(s) // may have ended
	wait.Receive(t, "the daemon has ended", p.done)
}

func (p *process) messages(t *testing.T) string {
	b, err := os.ReadFile(p.log)
	if err != nil {
		t.Error(err)
	}
	return string(b)
}
