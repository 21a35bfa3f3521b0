package lsvd_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"miren.dev/runtime/lsvd"
	"miren.dev/runtime/lsvd/store/s3"
	"miren.dev/runtime/lsvd/store/s3/s3test"
	"miren.dev/runtime/lsvd/vfs"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/testsupport/wait"
)

// Experiment 6 on the wire: a real S3 server behind a proxy that misbehaves.
// LSVD_OUTAGE makes the outage longer than 5 s (make soak: 60s).

// soak writes to and reads from areas of its own with some goroutines and
// compares with a model, until stop is closed.
type soak struct {
	d     *lsvd.Device
	model []byte
	area  int
	ops   atomic.Int64
	slow  atomic.Int64 // longest operation, in ns
	wg    sync.WaitGroup
}

func startSoak(t *testing.T, d *lsvd.Device, workers int, stop <-chan struct{}) *soak {
	s := &soak{d: d, model: make([]byte, d.Size()), area: int(d.Size()) / workers}
	for w := range workers {
		s.wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(w), 11))
			mine, base := s.model[w*s.area:(w+1)*s.area], int64(w*s.area)
			for step := 0; ; step++ {
				select {
				case <-stop:
					return
				default:
				}
				if err := s.step(t.Context(), rng, mine, base); err != nil {
					t.Errorf("worker %d, step %d: %v", w, step, err)
					return
				}
			}
		})
	}
	return s
}

var errDiffers = errors.New("read differs from the model")

func (s *soak) step(ctx context.Context, rng *rand.Rand, mine []byte, base int64) error {
	off := rng.IntN(len(mine)/lsvd.BlockSize) * lsvd.BlockSize
	n := min((1+rng.IntN(16))*lsvd.BlockSize, len(mine)-off)
	start := time.Now()
	defer func() {
		took := int64(time.Since(start))
		for {
			was := s.slow.Load()
			if took <= was || s.slow.CompareAndSwap(was, took) {
				break
			}
		}
		s.ops.Add(1)
	}()
	switch rng.IntN(10) {
	case 0:
		clear(mine[off : off+n])
		return s.d.Trim(ctx, base+int64(off), int64(n), 0)
	case 1:
		return s.d.Flush(ctx)
	case 2, 3, 4:
		got := make([]byte, n)
		if err := s.d.ReadAt(ctx, got, base+int64(off)); err != nil {
			return err
		}
		if !bytes.Equal(got, mine[off:off+n]) {
			return errDiffers
		}
		return nil
	}
	for k := off; k < off+n; k += 8 {
		binary.LittleEndian.PutUint64(mine[k:], rng.Uint64())
	}
	return s.d.WriteAt(ctx, mine[off:off+n], base+int64(off), 0)
}

func (s *soak) check(t *testing.T, d *lsvd.Device) {
	t.Helper()
	got := make([]byte, len(s.model))
	if err := d.ReadAt(t.Context(), got, 0); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, s.model) {
		t.Fatal("disk differs from its model")
	}
}

// wireRig is a rig whose store is behind a proxy.
func wireRig(t *testing.T, server *s3test.Server, size int64) (*fixture, *s3test.Proxy) {
	t.Helper()
	proxy := s3test.NewProxy(t, server.URL)
	c := server.Config(s3test.Prefix(t), proxy.URL)
	c.Timeout = 4 * time.Second // also for a server that many tests keep busy
	st, err := s3.Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	r := newFixture(t, lsvd.BlockSize)
	r.st, r.id = st, lsvd.NewID()
	r.opts.CutBytes, r.opts.MaxUnsent = 512<<10, 4<<20
	if err := lsvd.Create(t.Context(), st, r.id, size, nil); err != nil {
		t.Fatal(err)
	}
	return r, proxy
}

func within(t *testing.T, limit time.Duration, what string, f func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	if err := f(ctx); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// finish drains, closes and opens again, without the log: what the store has
// must be all there is.
func finish(t *testing.T, r *fixture, s *soak) {
	t.Helper()
	within(t, time.Minute, "drain", s.d.Drain)
	s.check(t, s.d)
	within(t, time.Minute, "close", s.d.Close)
	fs, err := vfs.OpenDir(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	r.fs = fs
	s.check(t, r.open())
}

func TestWireFaults(t *testing.T) {
	server := s3test.Start(t, "minio")
	for name, fault := range map[string]func(q s3test.Request) s3test.Fault{
		"503": func(s3test.Request) s3test.Fault { return s3test.Fault{Status: 503, Code: "SlowDown"} },
		"500": func(s3test.Request) s3test.Fault { return s3test.Fault{Status: 500, Code: "InternalError"} },
		"409": func(s3test.Request) s3test.Fault {
			return s3test.Fault{Status: 409, Code: "ConditionalRequestConflict"}
		},
		"reset":                  func(s3test.Request) s3test.Fault { return s3test.Fault{Reset: true} },
		"reset after success":    func(s3test.Request) s3test.Fault { return s3test.Fault{Lose: true} },
		"time-out after success": func(s3test.Request) s3test.Fault { return s3test.Fault{Silent: true} },
		"truncated body":         func(s3test.Request) s3test.Fault { return s3test.Fault{Cut: true} },
		"stale read":             func(s3test.Request) s3test.Fault { return s3test.Fault{Stale: true} },
		"slow list": func(q s3test.Request) s3test.Fault {
			return s3test.Fault{Slow: time.Second * time.Duration(b2i(q.List))}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, proxy := wireRig(t, server, 8<<20)
			d := r.open()
			var n atomic.Int64
			every := int64(9)
			if name == "time-out after success" {
				every = 50 // each takes the time-out of a request
			}
			proxy.SetHook(func(q s3test.Request) s3test.Fault {
				if n.Add(1)%every == 0 {
					return fault(q)
				}
				return s3test.Fault{}
			})
			stop := make(chan struct{})
			s := startSoak(t, d, 4, stop)
			time.AfterFunc(2*time.Second, func() { close(stop) })
			s.wg.Wait()
			if t.Failed() {
				return
			}
			if _, err := d.GC(t.Context(), 1.2); err != nil {
				t.Fatal(err)
			}
			proxy.SetHook(nil)
			finish(t, r, s)
			t.Logf("%d operations, slowest %v", s.ops.Load(), time.Duration(s.slow.Load()))
		})
	}
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// TestWireOutage takes the store away under load: writes go on until the bound
// of unsent bytes, then wait, as do reads of what is not cached; all succeed
// once it is back.
func TestWireOutage(t *testing.T) {
	outage := 5 * time.Second
	if v := os.Getenv("LSVD_OUTAGE"); v != "" {
		var err error
		if outage, err = time.ParseDuration(v); err != nil {
			t.Fatal(err)
		}
	}
	server := s3test.Start(t, "minio")
	for name, fault := range map[string]s3test.Fault{
		"refused": {Reset: true}, "503": {Status: 503, Code: "SlowDown"}, "silent": {Silent: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, proxy := wireRig(t, server, 32<<20)
			d := r.open()
			stop := make(chan struct{})
			s := startSoak(t, d, 4, stop)
			wait.For(t, "something in the store", func() bool { return d.Stats().Stored > 1<<20 })
			proxy.SetHook(func(s3test.Request) s3test.Fault { return fault })
			began, over := time.Now(), time.NewTimer(outage)
			wait.For(t, "backpressure", func() bool { return d.Stats().UnsentBytes >= r.opts.MaxUnsent })
			before := s.ops.Load()
			<-over.C
			// What is sent to a store that is silent fails only after its time.
			wait.For(t, "failure", func() bool { return d.Stats().StoreFailures > 0 })
			if u := d.Stats(); u.UnsentBytes > r.opts.MaxUnsent+4<<20 || u.Lag < outage/2 {
				t.Errorf("after the outage: %+v", u)
			}
			proxy.SetHook(nil)
			away := time.Since(began)
			wait.For(t, "work going on", func() bool { return s.ops.Load() > before+200 || t.Failed() })
			close(stop)
			s.wg.Wait()
			if t.Failed() {
				return
			}
			if slow := time.Duration(s.slow.Load()); slow > away+15*time.Second {
				t.Errorf("an operation took %v in an outage of %v", slow, away)
			}
			finish(t, r, s)
		})
	}
}

// TestWireRace replaces the manifest behind the disk's back just before its
// own replacement arrives: it must not be written over.
func TestWireRace(t *testing.T) {
	server := s3test.Start(t, "minio")
	r, proxy := wireRig(t, server, 8<<20)
	d := r.open()
	straight, err := s3.Open(t.Context(), server.Config(s3test.Prefix(t), ""))
	if err != nil {
		t.Fatal(err)
	}
	buf := bytes.Repeat([]byte{3}, 1<<20)
	if err := d.WriteAt(t.Context(), buf, 0, 0); err != nil {
		t.Fatal(err)
	}
	within(t, time.Minute, "drain", d.Drain)
	logs, err := vfs.OpenDir(filepath.Join(t.TempDir(), "other"))
	if err != nil {
		t.Fatal(err)
	}
	var once sync.Once
	var other *lsvd.Device
	proxy.SetHook(func(q s3test.Request) s3test.Fault {
		if q.Put != "replace" {
			return s3test.Fault{}
		}
		return s3test.Fault{Before: func() {
			once.Do(func() {
				opts := r.opts
				opts.AcceptLoss = true // the log is with the other one
				var err error
				if other, _, err = lsvd.Open(t.Context(), straight, logs, r.id, opts); err != nil {
					t.Errorf("take over: %v", err)
				}
			})
		}}
	})
	if err := d.Snapshot(t.Context(), "late"); !errs.Is(err, errs.Conflict) {
		t.Fatalf("snapshot of a disk that was taken over: %v", err)
	}
	if err := d.WriteAt(t.Context(), buf, 0, 0); !errs.Is(err, errs.Conflict) {
		t.Errorf("write: %v", err)
	}
	if err := d.ReadAt(t.Context(), buf, 0); !errs.Is(err, errs.Conflict) {
		t.Errorf("read: %v", err)
	}
	if other == nil {
		t.Fatal("nobody took over")
	}
	t.Cleanup(func() { other.Close(context.Background()) })
	got := make([]byte, 1<<20)
	if err := other.ReadAt(t.Context(), got, 0); err != nil || got[0] != 3 || got[1<<20-1] != 3 {
		t.Errorf("the winner reads %d: %v", got[0], err)
	}
	names, err := lsvd.Snapshots(t.Context(), straight, r.id)
	if err != nil || slices.ContainsFunc(names, func(n string) bool { _, ok := lsvd.ParseTakeover(n); return !ok }) {
		t.Errorf("snapshots %v, %v", names, err)
	}
}
