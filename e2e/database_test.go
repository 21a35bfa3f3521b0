package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/pkg/config"
	"miren.dev/runtime/pkg/instance"
	"miren.dev/runtime/testsupport/wait"
)

// kills is how often the disk daemon is killed under each file system, and
// buildRounds how often the sources are built meanwhile. LSVD_SOAK makes it long.
func kills() int {
	if os.Getenv("LSVD_SOAK") != "" {
		return 100
	}
	return 4
}

// TestDatabaseOnDisk is experiment 7 of the disks: a database under load and a
// build on a real file system on an attached disk, while the disk daemon is
// killed and restarted. Neither may see an error.
func TestDatabaseOnDisk(t *testing.T) {
	s, err := newServer("disk-database")
	if err != nil {
		t.Fatal(err)
	}
	d := startDiskDaemon(t, s)
	for _, fs := range []string{"ext4", "xfs"} {
		if !t.Run(fs, func(t *testing.T) { d.database(t, fs) }) {
			return
		}
	}
}

// diskDaemon is a disk daemon of a test, which may be killed.
type diskDaemon struct {
	*server
	cmd *exec.Cmd
	log *bytes.Buffer
}

// startDiskDaemon also makes sure that the test leaves nothing of its disks.
func startDiskDaemon(t *testing.T, s *server) *diskDaemon {
	t.Helper()
	d := &diskDaemon{server: s, log: new(bytes.Buffer)}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		for _, args := range [][]string{{"lsvd", "detach", "--all", "--force"}, {"lsvd", "daemon", "--stop"}} {
			if out, err := s.command(ctx, "", args...).CombinedOutput(); err != nil {
				t.Errorf("r %s: %v\n%s", strings.Join(args, " "), err, out)
			}
		}
		_ = d.cmd.Wait() // stopped, or killed before
		if t.Failed() {
			t.Logf("the daemon said:\n%s", d.log)
		}
		in, err := instance.Find(s.state, config.DefaultRunDir())
		if err != nil {
			t.Error(err)
			return
		}
		if err := errors.Join(os.RemoveAll(in.RunDir), os.RemoveAll(s.state)); err != nil {
			t.Error(err)
		}
	})
	d.start(t)
	return d
}

// start starts the daemon and waits until it answers.
func (d *diskDaemon) start(t *testing.T) {
	t.Helper()
	d.cmd = d.command(context.Background(), "", "lsvd", "daemon")
	d.cmd.Stderr = d.log
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	wait.NoError(t, "the disk daemon answers", func() error {
		out, err := d.command(t.Context(), "", "lsvd", "daemon", "--status").CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
}

// kill kills the daemon and starts it again at once.
func (d *diskDaemon) kill(t *testing.T) {
	t.Helper()
	if err := d.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = d.cmd.Wait() // it was killed
	d.start(t)
}

func (d *diskDaemon) database(t *testing.T, fs string) {
	name := "db-" + fs
	d.r(t, "", "lsvd", "create", name, "--size", "2G")
	dev := strings.TrimSpace(d.r(t, "", "lsvd", "attach", name, "--quiet"))
	sh(t, "mkfs."+fs, "-q", dev)
	mnt := filepath.Join(t.TempDir(), "mnt")
	if err := os.Mkdir(mnt, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(dev, mnt, fs, 0, ""); err != nil {
		t.Fatal(err)
	}
	mounted := true
	t.Cleanup(func() {
		if mounted {
			_ = unix.Unmount(mnt, unix.MNT_DETACH) // the test has failed
		}
	})
	pg := startDatabase(t, mnt)
	pg.run(t, "pgbench", "--initialize", "--quiet", "--scale=5")

	load, stop := context.WithCancel(t.Context())
	defer stop()
	var users sync.WaitGroup
	var bench []byte
	var benchErr, buildErr error
	users.Go(func() {
		cmd := pg.command(context.Background(), "pgbench", "--client=4", "--jobs=2", "--time=86400", "--progress=10")
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		if benchErr = cmd.Start(); benchErr != nil {
			return
		}
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		select {
		case benchErr = <-ended:
			benchErr = fmt.Errorf("pgbench ended by itself: %v", benchErr)
		case <-load.Done():
			_ = cmd.Process.Signal(syscall.SIGINT)
			<-ended // it ends by the signal
		}
		bench = out.Bytes()
	})
	users.Go(func() { buildErr = build(load, filepath.Join(mnt, "build")) })

	restored := make([]time.Duration, 0, kills())
	for range kills() {
		select { // let them work, for a different time each round
		case <-load.Done():
		case <-time.After(time.Duration(300+rand.IntN(700)) * time.Millisecond):
		}
		began := time.Now()
		d.kill(t)
		before := pg.transactions(t)
		wait.NoError(t, "a transaction after the daemon was killed", func() error {
			if pg.transactions(t) == before {
				return errors.New("no transaction since the daemon was killed")
			}
			return nil
		}, wait.Within(30*time.Second))
		restored = append(restored, time.Since(began))
	}
	stop()
	users.Wait()
	if benchErr != nil || bytes.Contains(bench, []byte("aborted")) || bytes.Contains(bench, []byte("rror:")) {
		t.Errorf("pgbench: %v\n%s", benchErr, bench)
	}
	if buildErr != nil {
		t.Errorf("build: %v", buildErr)
	}
	t.Logf("%s: %d kills, the next transaction after at most %s", fs, kills(), slices.Max(restored).Round(time.Millisecond))
	pg.run(t, "psql", "--no-psqlrc", "--command=create extension amcheck")
	pg.run(t, "pg_amcheck", "--heapallindexed", "--parent-check", "postgres")
	pg.stop(t)

	if err := unix.Unmount(mnt, 0); err != nil {
		t.Fatal(err)
	}
	mounted = false
	if fs == "ext4" {
		sh(t, "e2fsck", "-f", "-n", dev)
	} else {
		sh(t, "xfs_repair", "-n", dev)
	}
	d.r(t, "", "lsvd", "detach", name)
	d.r(t, "", "lsvd", "check", name)
	d.r(t, "", "lsvd", "delete", name, "--yes")
}

// build makes programs from many small sources in dir until ctx ends, and fails
// if the output of one does not match its source.
func build(ctx context.Context, dir string) error {
	for round := 0; ctx.Err() == nil; round++ {
		var objects []string
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		var main strings.Builder
		main.WriteString("#include <stdio.h>\n")
		call := ""
		for i := range 10 {
			src := filepath.Join(dir, fmt.Sprintf("f%d.c", i))
			if err := os.WriteFile(src, fmt.Appendf(nil, "int f%d(void) { return %d; }\n", i, round*100+i), 0o644); err != nil {
				return err
			}
			fmt.Fprintf(&main, "int f%d(void);\n", i)
			call += fmt.Sprintf("+f%d()", i)
			objects = append(objects, src)
		}
		fmt.Fprintf(&main, "int main(void) { printf(\"%%d\", 0%s); return 0; }\n", call)
		src, exe := filepath.Join(dir, "main.c"), filepath.Join(dir, "main")
		if err := os.WriteFile(src, []byte(main.String()), 0o644); err != nil {
			return err
		}
		cc := exec.Command("cc", append([]string{"-o", exe, src}, objects...)...)
		if out, err := cc.CombinedOutput(); err != nil {
			return fmt.Errorf("round %d: %w\n%s", round, err, out)
		}
		out, err := exec.Command(exe).Output()
		if want := strconv.Itoa(10*100*round + 45); err != nil || string(out) != want {
			return fmt.Errorf("round %d: built program says %q, %v; want %s", round, out, err, want)
		}
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
	}
	return nil
}

// database is a PostgreSQL of a test.
type database struct {
	bin, dir, data string
	user           *syscall.Credential
	server         *exec.Cmd
}

// startDatabase makes a database in a directory and starts it, as a user that
// is not root, with PostgreSQL's integrity checks.
func startDatabase(t *testing.T, dir string) *database {
	t.Helper()
	bins, err := filepath.Glob("/usr/lib/postgresql/*/bin")
	if err != nil || len(bins) == 0 {
		t.Fatal("PostgreSQL is not installed")
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		t.Fatal(err)
	}
	uid, _ := strconv.Atoi(u.Uid) // of the system
	gid, _ := strconv.Atoi(u.Gid)
	d := &database{bin: bins[len(bins)-1], dir: filepath.Join(dir, "pg"), user: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
	d.data = filepath.Join(d.dir, "data")
	if err := os.Mkdir(d.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	// The directories above belong to the test and to root.
	for p := dir; p != os.TempDir() && p != "/"; p = filepath.Dir(p) {
		if err := os.Chmod(p, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chown(d.dir, uid, gid); err != nil {
		t.Fatal(err)
	}
	d.run(t, "initdb", "--data-checksums", "--auth=trust", "--pgdata="+d.data)
	d.server = d.command(context.Background(), "postgres", "-D", d.data, "-k", d.dir, "-c", "listen_addresses=")
	log, err := os.OpenFile(filepath.Join(t.TempDir(), "postgres.log"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	d.server.Stdout, d.server.Stderr = log, log
	if err := d.server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if d.server.ProcessState == nil {
			_ = d.server.Process.Signal(syscall.SIGQUIT)
			_ = d.server.Wait() // the test has failed
		}
		b, _ := os.ReadFile(log.Name()) // the existing log
		if t.Failed() || bytes.Contains(b, []byte("PANIC")) || bytes.Contains(b, []byte("I/O error")) || bytes.Contains(b, []byte("Input/output")) {
			t.Errorf("postgres said:\n%s", b)
		}
		log.Close()
	})
	wait.NoError(t, "the database answers", func() error { return d.command(t.Context(), "pg_isready").Run() })
	return d
}

func (d *database) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(d.bin, name), args...)
	cmd.Dir = d.dir
	cmd.Env = append(os.Environ(), "PGHOST="+d.dir, "PGUSER=postgres", "PGDATABASE=postgres", "LC_ALL=C")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: d.user}
	return cmd
}

func (d *database) run(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := d.command(t.Context(), name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// transactions counts the committed transactions in the history of pgbench.
func (d *database) transactions(t *testing.T) string {
	t.Helper()
	return d.run(t, "psql", "--no-psqlrc", "--tuples-only", "--command=select count(*) from pgbench_history")
}

func (d *database) stop(t *testing.T) {
	t.Helper()
	if err := d.server.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if err := d.server.Wait(); err != nil {
		t.Errorf("postgres: %v", err)
	}
}

// sh runs a program that must succeed.
func sh(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
}
