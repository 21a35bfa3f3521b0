package postgres

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/proc"
	"miren.dev/runtime/testsupport/leakcheck"
	"miren.dev/runtime/testsupport/need"
	"miren.dev/runtime/testsupport/wait"
)

func needBinaries(t *testing.T) {
	t.Helper()
	if len(installed(t.Context(), "")) == 0 {
		need.Missing(t, "no PostgreSQL server binaries are installed")
	}
}

// config returns the configuration of a cluster that is gone after the test.
func config(t *testing.T) Config {
	t.Helper()
	needBinaries(t)
	in := leakcheck.Installation(t)
	cfg := Config{
		Dir:        in.State("pg"),
		SocketDir:  in.Socket("s"),
		LogFile:    in.State("log", "pg.log"),
		RecordFile: in.Socket("r", "pg.json"),
		Name:       in.Name(""),
		NoSync:     true,
		Logger:     slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
	t.Cleanup(func() {
		if err := endOrphans(context.Background(), cfg.data(), cfg.Logger); err != nil {
			t.Error(err)
		}
	})
	return cfg
}

func start(t *testing.T, cfg Config) *Server {
	t.Helper()
	s, err := Start(t.Context(), cfg)
	if err != nil {
		if b, e := os.ReadFile(cfg.LogFile); e == nil {
			t.Logf("log:\n%s", b)
		}
		t.Fatal(err)
	}
	return s
}

func exec1(t *testing.T, s *Server, sql string) {
	t.Helper()
	c, err := pgx.Connect(t.Context(), s.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(context.Background())
	if _, err := c.Exec(t.Context(), sql); err != nil {
		t.Fatal(err)
	}
}

func count(t *testing.T, s *Server) int {
	t.Helper()
	c, err := pgx.Connect(t.Context(), s.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(context.Background())
	var n int
	if err := c.QueryRow(t.Context(), "select count(*) from x").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestStartAdoptStop(t *testing.T) {
	cfg := config(t)
	cfg.NoSync = false
	s := start(t, cfg)
	if s.proc.Adopted {
		t.Fatal("a new cluster was adopted")
	}
	exec1(t, s, "create table x (n int); insert into x values (1)")
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(s.PID()), "stat"))
	if err != nil {
		t.Fatal(err)
	}
	if f := strings.Fields(string(b)); f[5] != strconv.Itoa(s.PID()) {
		t.Errorf("session of postgres is %s, want its own (%d)", f[5], s.PID())
	}

	again := start(t, cfg)
	if !again.proc.Adopted || again.PID() != s.PID() {
		t.Fatalf("second start: adopted %v, pid %d, want %d", again.proc.Adopted, again.PID(), s.PID())
	}
	att, err := Attach(cfg)
	if err != nil || att == nil {
		t.Fatalf("attach: %v, %v", att, err)
	}
	if err := att.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if att, err := Attach(cfg); att != nil || err != nil {
		t.Fatalf("attach to a stopped cluster: %v, %v", att, err)
	}
	if s = start(t, cfg); count(t, s) != 1 {
		t.Fatal("row lost by stop and start")
	}
	if err := s.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if left, _ := workingIn(cfg.data()); len(left) != 0 {
		t.Fatalf("left after stop: %v", left)
	}
}

func TestOtherUsersAreRefused(t *testing.T) {
	need.Root(t)
	cfg := config(t)
	s := start(t, cfg)
	bin, err := findBinaries(t.Context(), "", cfg.data())
	if err != nil {
		t.Fatal(err)
	}
	psql := func(uid uint32) ([]byte, error) {
		cmd := exec.Command(filepath.Join(bin, "psql"), s.URL(), "-c", "select 1")
		cmd.Dir = "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		return cmd.CombinedOutput()
	}
	if out, err := psql(0); err != nil {
		t.Errorf("root: %v: %s", err, out)
	}
	if out, err := psql(65534); err == nil {
		t.Errorf("user nobody was let in: %s", out)
	}
	// The socket's mode is not the only protection.
	sock := filepath.Join(cfg.SocketDir, ".s.PGSQL.5432")
	for path, mode := range map[string]os.FileMode{sock: 0o777, cfg.SocketDir: 0o755} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := psql(65534); err == nil || !strings.Contains(string(out), "authentication failed") {
		t.Errorf("user nobody through an open socket: %v: %s", err, out)
	}
}

// TestSharedMemoryIsInTheCluster: PostgreSQL that is killed leaves its shared memory. It must be where the next start or
// the removal of the cluster removes it, and not in /dev/shm, where nothing says whose it is.
func TestSharedMemoryIsInTheCluster(t *testing.T) {
	cfg := config(t)
	s := start(t, cfg)
	maps, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(s.PID()), "maps"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(maps), filepath.Join(cfg.data(), "pg_dynshmem")) {
		t.Error("it has no shared memory below its data directory")
	}
	for l := range strings.Lines(string(maps)) {
		if strings.Contains(l, "/dev/shm/") {
			t.Errorf("it has shared memory elsewhere: %s", l)
		}
	}
	if err := s.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestKilledPostmasterIsRestarted(t *testing.T) {
	cfg := config(t)
	s := start(t, cfg)
	exec1(t, s, "create table x (n int); insert into x values (1)")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()

	// A backend that is busy when its postmaster dies.
	busy, err := pgx.Connect(t.Context(), s.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close(context.Background())
	go busy.Exec(context.Background(), "select count(*) from generate_series(1, 1000000000)")

	for range 3 {
		pid := s.PID()
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		wait.For(t, "another postmaster is ready", func() bool { return s.PID() != pid && s.ready(t.Context()) == nil })
		if n := count(t, s); n != 1 {
			t.Fatalf("%d rows after a crash, want 1", n)
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if s.ready(t.Context()) != nil {
		t.Fatal("the cluster ended with its supervisor")
	}
	if err := s.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestRunEndsWithStop(t *testing.T) {
	s := start(t, config(t))
	done := make(chan error, 1)
	go func() { done <- s.Run(context.Background()) }()
	if err := s.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := wait.Receive(t, "the end of Run after Stop", done); err != nil {
		t.Fatal(err)
	}
}

func TestLostRecord(t *testing.T) {
	cfg := config(t)
	s := start(t, cfg)
	exec1(t, s, "create table x (n int); insert into x values (1)")
	if err := os.Remove(cfg.RecordFile); err != nil {
		t.Fatal(err)
	}
	again := start(t, cfg)
	if again.PID() == s.PID() || count(t, again) != 1 {
		t.Fatalf("pid %d, was %d; rows %d", again.PID(), s.PID(), count(t, again))
	}
}

func TestStalePIDOfLiveProcess(t *testing.T) {
	cfg := config(t)
	s := start(t, cfg)
	if err := s.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	// The pid was recycled by a process that is alive and not ours.
	lock := strconv.Itoa(os.Getpid()) + "\n" + cfg.data() + "\n1\n5432\n" + cfg.SocketDir + "\n\n"
	if err := os.WriteFile(filepath.Join(cfg.data(), "postmaster.pid"), []byte(lock), 0o600); err != nil {
		t.Fatal(err)
	}
	start(t, cfg)
}

func TestInterruptedInitialisation(t *testing.T) {
	cfg := config(t)
	for _, after := range []time.Duration{5 * time.Millisecond, 100 * time.Millisecond} {
		ctx, cancel := context.WithTimeout(t.Context(), after)
		if _, err := Start(ctx, cfg); err == nil {
			t.Fatal("initialised too fast to be interrupted")
		}
		cancel()
		if _, err := os.Stat(cfg.data()); !errors.Is(err, os.ErrNotExist) {
			t.Fatalf("half a cluster is in place: %v", err)
		}
	}
	start(t, cfg)
}

func TestOtherMajorVersion(t *testing.T) {
	cfg := config(t)
	if err := os.MkdirAll(cfg.data(), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(cfg.data(), "PG_VERSION"), []byte("9\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Start(t.Context(), cfg)
	if !errs.Is(err, errs.FailedPrecondition) || errs.HintOf(err) == "" {
		t.Fatalf("got %v, hint %q", err, errs.HintOf(err))
	}
}

func TestUnreachableDirectory(t *testing.T) {
	need.Root(t)
	cfg := config(t)
	top := filepath.Dir(cfg.Dir)
	if err := os.Chmod(top, 0o700); err != nil {
		t.Fatal(err)
	}
	_, err := Start(t.Context(), cfg)
	if !errs.Is(err, errs.FailedPrecondition) || !strings.Contains(errs.HintOf(err), top) {
		t.Fatalf("got %v, hint %q", err, errs.HintOf(err))
	}
}

func TestBoundLog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	if err := boundLog(path); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, make([]byte, maxLogBytes+1), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := boundLog(path); err != nil {
		t.Fatal(err)
	}
	st, err := os.Stat(path)
	if err != nil || st.Size() != 0 {
		t.Fatalf("%v, %v", st, err)
	}
	if st, err = os.Stat(path + ".1"); err != nil || st.Size() != maxLogBytes {
		t.Fatalf("%v, %v", st, err)
	}
}

func TestRecordIsOfPostmaster(t *testing.T) {
	s := start(t, config(t))
	p, err := proc.Find(s.cfg.RecordFile)
	if err != nil || p == nil || p.PID() != s.PID() {
		t.Fatalf("%v, %v", p, err)
	}
}
