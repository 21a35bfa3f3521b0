package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"miren.dev/runtime/lsvd"
	"miren.dev/runtime/lsvd/frontend/loop"
	"miren.dev/runtime/lsvd/frontend/nbd"
	"miren.dev/runtime/lsvd/store"
	dirstore "miren.dev/runtime/lsvd/store/dir"
	"miren.dev/runtime/lsvd/store/s3"
	"miren.dev/runtime/lsvd/vfs"
)

// gateStore is a store that a test can make hold back writes, like an
// unavailable store, and delay every request.
type gateStore struct {
	store.Store
	delay time.Duration

	mu   sync.Mutex
	held chan struct{} // nil: writes go through
}

func (s *gateStore) hold() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held == nil {
		s.held = make(chan struct{})
	}
}

func (s *gateStore) open() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held != nil {
		close(s.held)
		s.held = nil
	}
}

func (s *gateStore) pass(ctx context.Context, write bool) error {
	s.mu.Lock()
	held := s.held
	s.mu.Unlock()
	if write && held != nil {
		select {
		case <-held:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if s.delay == 0 {
		return nil
	}
	select {
	case <-time.After(s.delay):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *gateStore) Get(ctx context.Context, key string) ([]byte, store.Version, error) {
	if err := s.pass(ctx, false); err != nil {
		return nil, "", err
	}
	return s.Store.Get(ctx, key)
}

func (s *gateStore) GetRange(ctx context.Context, key string, off, n int64) ([]byte, error) {
	if err := s.pass(ctx, false); err != nil {
		return nil, err
	}
	return s.Store.GetRange(ctx, key, off, n)
}

func (s *gateStore) Create(ctx context.Context, key string, data []byte) (store.Version, error) {
	if err := s.pass(ctx, true); err != nil {
		return "", err
	}
	return s.Store.Create(ctx, key, data)
}

func (s *gateStore) Replace(ctx context.Context, key string, data []byte, old store.Version) (store.Version, error) {
	if err := s.pass(ctx, true); err != nil {
		return "", err
	}
	return s.Store.Replace(ctx, key, data, old)
}

// nearGate is a gateStore of a directory: reads of segments go straight to it.
type nearGate struct {
	*gateStore
	store.Local
}

// diskOptions are the options of the child that serves a disk.
type diskOptions struct {
	dir    string // directory of the store, log and sockets
	volume string
	size   int64 // size of the volume to make; 0: it exists
	cache  int64
	group  string // memory cgroup to join; "" none
	owner  string // attach it for this owner; "" does not
	delay  time.Duration
	log    string // directory of the log, below dir
	held   bool   // begin with the store held
	s3     string // URL of the server that has the store; "": a directory
}

// The bucket of the store on an S3 server, and both parts of its key.
const s3Bucket, s3Key = "bench", "benchbench"

// served is a disk of a child.
type served struct {
	o     diskOptions
	dev   *lsvd.Device
	gate  *gateStore
	store store.Store
	info  diskInfo
}

// diskInfo is the child's first message.
type diskInfo struct {
	Device string // block device, if attached
	OpenMS float64
}

func (o diskOptions) socket(name string) string { return filepath.Join(o.dir, o.volume+"."+name) }

// diskChild serves a disk by NBD, and attached, as the daemon does; it obeys
// commands on a control socket.
func diskChild(ctx context.Context, args []string, ready func(string)) (err error) {
	var o diskOptions
	f := flag.NewFlagSet("disk", flag.ContinueOnError)
	f.StringVar(&o.dir, "dir", "", "")
	f.StringVar(&o.volume, "volume", lsvd.ID{1}.String(), "")
	f.Int64Var(&o.size, "size", 0, "")
	f.Int64Var(&o.cache, "cache", 0, "")
	f.StringVar(&o.group, "group", "", "")
	f.StringVar(&o.owner, "owner", "", "")
	f.DurationVar(&o.delay, "delay", 0, "")
	f.StringVar(&o.log, "log", "log", "")
	f.BoolVar(&o.held, "held", false, "")
	f.StringVar(&o.s3, "s3", "", "")
	if err := f.Parse(args); err != nil {
		return err
	}
	logger := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	if err := joinGroup(o.group); err != nil {
		return err
	}
	if err := loop.Prepare(logger); err != nil {
		return err
	}
	s, err := openDisk(ctx, o, logger)
	if err != nil {
		return err
	}
	defer func() {
		s.gate.open()
		err = errors.Join(err, s.dev.Close(context.Background()))
	}()
	if o.held {
		s.gate.hold()
	}
	server := nbd.New(logger)
	if err := server.Add(nbd.Export{Disk: s.dev}); err != nil {
		return err
	}
	l, err := listenFresh(o.socket("nbd"))
	if err != nil {
		return err
	}
	control, err := listenFresh(o.socket("ctl"))
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer context.AfterFunc(ctx, func() { control.Close() })()
	wg.Go(func() { s.control(ctx, control) })
	if o.owner != "" {
		a, err := loop.Attach(ctx, s.dev, loop.Options{Owner: o.owner, Volume: "bench", Dir: filepath.Join(o.dir, "mnt"), Logger: logger})
		if err != nil {
			return err
		}
		s.info.Device = a.Path()
		defer func() { err = errors.Join(err, a.Detach(context.Background())) }()
	}
	b, err := json.Marshal(s.info)
	if err != nil {
		return err
	}
	ready(string(b))
	return server.Serve(ctx, l)
}

func listenFresh(path string) (net.Listener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	return net.Listen("unix", path)
}

func openDisk(ctx context.Context, o diskOptions, logger *slog.Logger) (*served, error) {
	id, err := lsvd.ParseID(o.volume)
	if err != nil {
		return nil, err
	}
	s := &served{o: o}
	if s.store, err = openStore(ctx, o); err != nil {
		return nil, err
	}
	fs, err := vfs.OpenDir(filepath.Join(o.dir, o.log))
	if err != nil {
		return nil, err
	}
	s.gate = &gateStore{Store: s.store, delay: o.delay}
	if o.size > 0 {
		if err := lsvd.Create(ctx, s.store, id, o.size, nil); err != nil {
			return nil, err
		}
	}
	began := time.Now()
	var st store.Store = s.gate
	if near, ok := s.store.(store.Local); ok && o.delay == 0 {
		st = nearGate{s.gate, near}
	}
	s.dev, _, err = lsvd.Open(ctx, st, fs, id, lsvd.Options{Logger: logger, CacheBytes: o.cache, MaxUnsent: 8 << 30})
	s.info.OpenMS = ms(time.Since(began))
	return s, err
}

func openStore(ctx context.Context, o diskOptions) (store.Store, error) {
	if o.s3 == "" {
		return dirstore.Open(filepath.Join(o.dir, "store"))
	}
	keys := filepath.Join(o.dir, "credentials")
	if err := os.WriteFile(keys, []byte("[default]\naws_access_key_id = "+s3Key+"\naws_secret_access_key = "+s3Key+"\n"), 0o600); err != nil {
		return nil, err
	}
	return s3.Open(ctx, s3.Config{Bucket: s3Bucket, Endpoint: o.s3, PathStyle: true, Credentials: keys})
}

func ms(d time.Duration) float64 { return d.Seconds() * 1000 }

// control answers each line of each connection: with milliseconds, or "error".
func (s *served) control(ctx context.Context, l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		stop := context.AfterFunc(ctx, func() { c.Close() })
		for in := bufio.NewScanner(c); in.Scan(); {
			began := time.Now()
			out, err := s.command(ctx, strings.Fields(in.Text()), &began)
			if err != nil {
				out = "error " + strings.ReplaceAll(err.Error(), "\n", " ")
			} else if out == "" {
				out = fmt.Sprintf("%f", ms(time.Since(began)))
			}
			if _, err := fmt.Fprintln(c, out); err != nil {
				break
			}
		}
		stop()
		c.Close()
	}
}

// command carries out a command; began is when the timed part began.
func (s *served) command(ctx context.Context, words []string, began *time.Time) (string, error) {
	arg := func(i int) int64 {
		if i >= len(words) {
			return 0
		}
		n, _ := strconv.ParseInt(words[i], 10, 64) // ours
		return n
	}
	switch words[0] {
	case "hold":
		s.gate.hold()
		return "", nil
	case "go":
		s.gate.open()
		return "", nil
	case "settle":
		if err := s.dev.Drain(ctx); err != nil {
			return "", err
		}
		_, err := s.dev.GC(ctx, 1.43)
		return "", err
	case "stats":
		b, err := json.Marshal(s.dev.Stats())
		return string(b), err
	case "snapshot":
		return "", s.dev.Snapshot(ctx, words[1])
	case "clone":
		id, err := lsvd.ParseID(words[2])
		if err != nil {
			return "", err
		}
		*began = time.Now()
		return "", lsvd.Clone(ctx, s.store, s.dev.ID(), words[1], id, nil)
	case "read":
		return "", s.dev.ReadAt(ctx, make([]byte, 4096), arg(1))
	case "touch": // 4 KiB every so many bytes
		b := make([]byte, 4096)
		for off := int64(0); off < s.dev.Size(); off += arg(1) {
			fillRandom(b, uint64(off))
			if err := s.dev.WriteAt(ctx, b, off, 0); err != nil {
				return "", err
			}
		}
		return "", nil
	case "fill": // so many bytes, in writes of so many at random places
		b := make([]byte, arg(2))
		fillRandom(b, 1)
		rng := rand.New(rand.NewPCG(1, 2))
		for n := int64(0); n < arg(1); n += arg(2) {
			if err := s.dev.WriteAt(ctx, b, rng.Int64N(s.dev.Size()/arg(2))*arg(2), 0); err != nil {
				return "", err
			}
		}
		return "", nil
	}
	return "", fmt.Errorf("no command %q", words[0])
}

// fillRandom fills b with data that does not compress.
func fillRandom(b []byte, seed uint64) {
	var key [32]byte
	for i := range 8 {
		key[i] = byte(seed >> (8 * i))
	}
	_, _ = rand.NewChaCha8(key).Read(b) // never fails
}

// peerChild runs a program that serves a socket or a TCP address, in the foreground: its
// arguments are the group to join or "", where it serves, and the program.
func peerChild(ctx context.Context, args []string, ready func(string)) error {
	if err := joinGroup(args[0]); err != nil {
		return err
	}
	cmd := exec.Command(args[2], args[3:]...)
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for said := false; ; {
		select {
		case <-ctx.Done():
			_ = cmd.Process.Kill()
			<-done
			return nil
		case err := <-done:
			return fmt.Errorf("%s ended: %w", args[2], errors.Join(err, ctx.Err()))
		case <-tick.C:
			if !said && serves(args[1]) {
				said = true
				ready(args[1])
			}
		}
	}
}

// serves reports whether a socket is there, or a TCP address takes connections.
func serves(where string) bool {
	if filepath.IsAbs(where) {
		_, err := os.Stat(where)
		return err == nil
	}
	c, err := net.Dial("tcp", where)
	if err != nil {
		return false
	}
	c.Close()
	return true
}
