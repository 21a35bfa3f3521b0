package nbd_test

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"miren.dev/runtime/lsvd"
	"miren.dev/runtime/lsvd/frontend/nbd"
	"miren.dev/runtime/lsvd/store"
	"miren.dev/runtime/lsvd/store/dir"
	"miren.dev/runtime/lsvd/store/s3"
	"miren.dev/runtime/lsvd/vfs"
	"miren.dev/runtime/pkg/errs"
)

// serving is what a process of this test binary serves, in the environment.
type serving struct {
	Dir  string // holds the store, the log and the socket
	Size int64
	S3   *s3.Config // the store instead; its failures may be logged
	Log  string     // name of the log; default log

	LogFile, CutBytes, MaxUnsent, CacheBytes int64
	Checkpoint                               int
	GCRatio                                  float64
}

const serveEnv = "NBD_TEST_SERVE"

func (s serving) socket() string { return filepath.Join(s.Dir, "nbd") }

// uri is what clients are told.
func (s serving) uri() string { return "nbd+unix:///disk?socket=" + s.socket() }

func TestMain(m *testing.M) {
	text := os.Getenv(serveEnv)
	if text == "" {
		os.Exit(m.Run())
	}
	var s serving
	err := json.Unmarshal([]byte(text), &s)
	if err == nil {
		err = s.run()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// open opens the store and the log.
func (s serving) open(ctx context.Context) (st store.Store, fs vfs.FS, err error) {
	if s.S3 != nil {
		st, err = s3.Open(ctx, *s.S3)
	} else {
		st, err = dir.Open(filepath.Join(s.Dir, "store"))
	}
	if err != nil {
		return nil, nil, err
	}
	fs, err = vfs.OpenDir(filepath.Join(s.Dir, cmp.Or(s.Log, "log")))
	return st, fs, err
}

// run serves until standard input ends, as it does when the test is gone. For
// each line of it, it prints its figures.
func (s serving) run() error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	st, fs, err := s.open(ctx)
	if err != nil {
		return err
	}
	id := lsvd.ID{1}
	if err := lsvd.Create(ctx, st, id, s.Size, nil); err != nil && !errs.Is(err, errs.AlreadyExists) {
		return err
	}
	logger := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	d, _, err := lsvd.Open(ctx, st, fs, id, lsvd.Options{
		Logger: logger, LogFile: s.LogFile, CutBytes: s.CutBytes, MaxUnsent: s.MaxUnsent, CacheBytes: s.CacheBytes, Checkpoint: s.Checkpoint, GCRatio: s.GCRatio,
	})
	if err != nil {
		return err
	}
	server := nbd.New(logger)
	if err := server.Add(nbd.Export{Name: "disk", Disk: d}); err != nil {
		return err
	}
	os.Remove(s.socket()) // of a killed process
	l, err := net.Listen("unix", s.socket())
	if err != nil {
		return err
	}
	fmt.Println("ready")
	var asked sync.WaitGroup
	asked.Go(func() {
		defer stop()
		out := json.NewEncoder(os.Stdout)
		for in := bufio.NewScanner(os.Stdin); in.Scan(); {
			if err := out.Encode(d.Stats()); err != nil {
				return
			}
		}
	})
	err = server.Serve(ctx, l)
	asked.Wait()
	fmt.Println("moved", d.Stats().StoredGC)
	return errors.Join(err, d.Close(context.Background()))
}

// process is a running process that serves.
type process struct {
	t      *testing.T
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	lines  *bufio.Scanner
	stderr bytes.Buffer
	noisy  bool // errors may be logged
	ended  bool
}

// stats are the figures of the disk.
func (p *process) stats() (s lsvd.Stats) {
	p.t.Helper()
	if _, err := io.WriteString(p.stdin, "\n"); err != nil {
		p.t.Fatalf("%v\n%s", err, p.stderr.String())
	}
	p.lines.Scan()
	if err := json.Unmarshal(p.lines.Bytes(), &s); err != nil {
		p.t.Fatal(err)
	}
	return s
}

func (s serving) start(t *testing.T) *process {
	t.Helper()
	text, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	p := &process{t: t, noisy: s.S3 != nil, cmd: exec.Command(os.Args[0])}
	p.cmd.Env = append(os.Environ(), serveEnv+"="+string(text))
	p.cmd.Stderr = &p.stderr
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.kill)
	p.lines = bufio.NewScanner(out)
	if !p.lines.Scan() || p.lines.Text() != "ready" {
		p.kill()
		t.Fatalf("the server did not start: %s", p.stderr.String())
	}
	return p
}

// kill is kill -9.
func (p *process) kill() {
	if p.ended {
		return
	}
	p.ended = true
	p.cmd.Process.Kill()
	p.cmd.Wait()
}

// stop ends the process in order and returns how many bytes GC moved.
func (p *process) stop() (moved int64) {
	p.t.Helper()
	p.stdin.Close()
	p.lines.Scan()
	fmt.Sscanf(p.lines.Text(), "moved %d", &moved)
	p.ended = true
	if err := p.cmd.Wait(); err != nil || p.stderr.Len() > 0 && !p.noisy {
		p.t.Errorf("server: %v\n%s", err, p.stderr.String())
	}
	return moved
}
