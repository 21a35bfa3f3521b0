package lsvd

import (
	"context"
	"fmt"
	"maps"
	"testing"
	"time"

	"miren.dev/runtime/lsvd/internal/name"
	"miren.dev/runtime/lsvd/store/storesim"
	"miren.dev/runtime/lsvd/vfs/vfssim"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/testsupport/wait"
)

// gcEnv is a volume of gcBlocks blocks and what they should have.
type gcEnv struct {
	t     *testing.T
	st    *storesim.Fault
	fs    *vfssim.Sim
	d     *Device
	opts  Options
	stamp uint32
	want  map[int]uint32 // stamps of blocks
	kept  map[int]uint32 // of the snapshot "s"
}

const gcBlocks = 64

func newGCEnv(t *testing.T, opts Options) *gcEnv {
	t.Helper()
	e := &gcEnv{t: t, st: &storesim.Fault{Store: &storesim.Mem{}}, fs: vfssim.New(), opts: opts, want: map[int]uint32{}}
	e.must(Create(t.Context(), e.st, ID{1}, gcBlocks*BlockSize, nil))
	return e
}

func (e *gcEnv) must(err error) {
	e.t.Helper()
	if err != nil {
		e.t.Fatal(err)
	}
}

func (e *gcEnv) open() {
	e.t.Helper()
	var err error
	e.d, _, err = Open(e.t.Context(), e.st, e.fs, ID{1}, e.opts)
	e.must(err)
}

// write writes each block of a step; with the step 1 all of them.
func (e *gcEnv) write(ctx context.Context, first, step int) {
	e.t.Helper()
	e.stamp++
	for i := first; i < gcBlocks; i += step {
		e.must(e.d.WriteAt(ctx, blockOf(i, e.stamp), int64(i)*BlockSize, 0))
		e.want[i] = e.stamp
	}
}

func (e *gcEnv) trim(ctx context.Context, first, n int) {
	e.t.Helper()
	e.must(e.d.Trim(ctx, int64(first)*BlockSize, int64(n)*BlockSize, 0))
	for i := first; i < first+n; i++ {
		delete(e.want, i)
	}
}

// holds asserts the content of a disk.
func (e *gcEnv) holds(what string, d *Device, want map[int]uint32) {
	e.t.Helper()
	p := make([]byte, gcBlocks*BlockSize)
	if err := d.ReadAt(e.t.Context(), p, 0); err != nil {
		e.t.Fatalf("%s: %v", what, err)
	}
	for i := range gcBlocks {
		if string(p[i*BlockSize:][:BlockSize]) != string(blockOf(i, want[i])) {
			e.t.Fatalf("%s: block %d has another content", what, i)
		}
	}
}

// clone asserts the content of a clone of the snapshot.
func (e *gcEnv) clone(what string) {
	e.t.Helper()
	e.must(Clone(e.t.Context(), e.st, ID{1}, "s", ID{2}, nil))
	c, _, err := Open(e.t.Context(), e.st, vfssim.New(), ID{2}, e.opts)
	e.must(err)
	e.holds(what, c, e.kept)
	e.must(c.Close(e.t.Context()))
}

// TestPublishingBesideGC: while the store does not answer a read of a segment that is
// collected, or the creation of the segment that its data moves to, a disk publishes, makes
// snapshots and checkpoints, and closes. The writes that it acknowledged meanwhile stay.
func TestPublishingBesideGC(t *testing.T) {
	for _, kind := range []storesim.Op{storesim.OpGetRange, storesim.OpCreate} {
		for _, background := range []bool{false, true} {
			for _, closes := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, background %t, closes %t", kind, background, closes), func(t *testing.T) {
					ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
					defer cancel()
					e := newGCEnv(t, Options{LogFile: 1 << 20, CutBytes: 64 << 10, CutAge: 20 * time.Millisecond, Checkpoint: 2, GCRatio: 100})
					e.open()
					e.write(ctx, 0, 1)
					e.must(e.d.Drain(ctx))
					e.write(ctx, 0, 2)
					e.must(e.d.Close(ctx))

					asked, answer := make(chan struct{}, 1), make(chan struct{})
					e.st.Hook = func(op storesim.Op, key string) storesim.Action {
						r, _ := name.ParseKey(key)
						if op == kind && (op == storesim.OpCreate && r.Kind == name.GC || op == storesim.OpGetRange && r.Kind == name.Data) {
							select {
							case asked <- struct{}{}:
							default:
							}
							<-answer
						}
						return storesim.Action{}
					}
					if background {
						e.opts.GCRatio = 1.05
					}
					e.open()
					collected := make(chan error, 1)
					if background {
						e.write(ctx, 1, 32) // a disk at rest collects slowly
						collected <- nil
					} else {
						go func() {
							_, err := e.d.GC(ctx, 1.05)
							collected <- err
						}()
					}
					wait.Receive(t, "data is moved", asked)
					e.write(ctx, 0, 4)
					e.trim(ctx, 30, 9)
					e.must(e.d.Drain(ctx))
					for i := range 2 * e.opts.Checkpoint {
						e.write(ctx, i, 8)
						e.must(e.d.Drain(ctx))
					}
					e.must(e.d.Snapshot(ctx, "s"))
					e.kept = maps.Clone(e.want)
					e.write(ctx, 3, 8)
					e.must(e.d.Drain(ctx))
					if s := e.d.Stats(); s.UnsentBytes > 0 {
						t.Errorf("%d bytes are unsent", s.UnsentBytes)
					}
					if !closes {
						close(answer)
						e.must(wait.Receive(t, "garbage collection ends", collected))
						e.holds("after it", e.d, e.want)
						e.must(e.d.Close(ctx))
					} else {
						closed := make(chan error, 1)
						go func() { closed <- e.d.Close(ctx) }()
						wait.Receive(t, "the disk closes", e.d.ending)
						close(answer) // a store returns when its context ends
						e.must(wait.Receive(t, "it is closed", closed))
					}
					e.st.Hook = nil
					_, _, err := Sweep(ctx, e.st)
					e.must(err)
					e.open()
					e.holds("opened again", e.d, e.want)
					e.must(e.d.Close(ctx))
					e.clone("the snapshot")
				})
			}
		}
	}
}

// TestChangesAtEveryRequestOfGC: at each request that a collection makes beside
// publishing, the disk is written, trimmed, checkpointed, or a snapshot made of it. The
// process goes on, or is killed at each request after that, before or after the store did
// it. The disk has what was acknowledged, and the snapshot what the disk had then.
func TestChangesAtEveryRequestOfGC(t *testing.T) {
	publish := func(e *gcEnv) {
		e.must(e.d.Drain(e.t.Context()))
		e.must(e.checkpoint())
	}
	for _, x := range []struct {
		name   string
		change func(e *gcEnv)
	}{
		{"written", func(e *gcEnv) { e.write(e.t.Context(), 1, 2) }},
		{"overwritten in part", func(e *gcEnv) {
			e.write(e.t.Context(), 0, 3)
			e.must(e.d.Drain(e.t.Context()))
		}},
		{"overwritten", func(e *gcEnv) {
			e.write(e.t.Context(), 0, 1)
			publish(e)
		}},
		{"trimmed", func(e *gcEnv) {
			e.trim(e.t.Context(), 5, 50)
			publish(e)
		}},
		{"snapshot", func(e *gcEnv) {
			e.write(e.t.Context(), 2, 5)
			e.must(e.d.Snapshot(e.t.Context(), "s"))
			e.kept = maps.Clone(e.want)
			e.write(e.t.Context(), 1, 2)
			publish(e)
		}},
		{"leaves evicted", func(e *gcEnv) {
			e.must(e.checkpoint())
			e.d.mu.Lock()
			e.d.loaded = e.d.base.Evict(false, 0)
			e.d.mu.Unlock()
		}},
	} {
		t.Run(x.name, func(t *testing.T) {
			t.Parallel()
			at := 1
			for ; changedGC(t, at, 0, false, x.change); at++ {
				// Each request of what GC does then, and some of the checkpoint at its end.
				for kill := 1; changedGC(t, at, kill, (at+kill)%2 == 0, x.change); kill += 1 + kill/2 {
				}
			}
			t.Logf("%d requests beside publishing", at-1)
			if at < 4 {
				t.Errorf("a collection makes %d requests beside publishing", at-1)
			}
		})
	}
}

// checkpoint makes a checkpoint as a caller without pub.
func (e *gcEnv) checkpoint() error {
	if err := e.d.pub.lock(e.t.Context()); err != nil {
		return err
	}
	defer e.d.pub.unlock()
	return e.d.checkpoint(e.t.Context(), false)
}

// changedGC changes a disk at the request number at of a collection, of those without
// pub, and kills the process at the request number kill after that, once the store has done it or
// not; 0: it goes on. It reports false if there is no such request.
func changedGC(t *testing.T, at, kill int, done bool, change func(*gcEnv)) bool {
	ctx, died := t.Context(), errs.New(errs.Internal, "killed")
	e := newGCEnv(t, Options{manual: true, LogFile: 128 << 10, CutBytes: 64 << 10, MaxUnsent: 64 << 20, Checkpoint: 100, GCRatio: 100})
	e.open()
	for _, step := range []int{1, 2, 3} {
		e.write(ctx, 0, step)
		e.must(e.d.Drain(ctx))
	}
	e.must(e.d.Close(ctx))
	e.open()
	what := fmt.Sprintf("changed at request %d, killed at %d after that, done %t", at, kill, done)
	n, after, changing := 0, 0, false
	e.st.Hook = func(_ storesim.Op, key string) (a storesim.Action) {
		r, _ := name.ParseKey(key)
		switch {
		case changing:
		case n >= at:
			if after++; kill > 0 && after == kill && done {
				a.After = died
			} else if kill > 0 && after >= kill {
				a.Before = died
			}
		case len(e.d.pub)+len(e.d.deleting) == 0 && r.Kind != name.Map: // else a change in this goroutine would wait for it
			if n++; n == at {
				changing = true
				change(e)
				changing = false
			}
		}
		return a
	}
	_, err := e.d.GC(ctx, 1.3)
	e.st.Hook = nil
	if n < at || after < kill {
		return false
	}
	if kill == 0 {
		e.must(err)
		e.holds(what, e.d, e.want)
		for _, s := range e.d.table {
			if s.moving {
				t.Errorf("%s: segment %s does not become garbage", what, s.Ref)
			}
		}
		if e.d.uncounted {
			t.Errorf("%s: live blocks are miscounted", what)
		}
	}
	e.fs.Kill()
	ended, end := context.WithCancel(ctx)
	end()
	_ = e.d.Close(ended)
	if kill%2 == 0 {
		_, _, err = Sweep(ctx, e.st)
		e.must(err)
	}
	e.open()
	e.holds(what+", opened again", e.d, e.want)
	if _, err := e.d.GC(ctx, 1); err != nil {
		t.Fatalf("%s: collect again: %v", what, err)
	}
	e.holds(what+", collected again", e.d, e.want)
	if e.d.uncounted {
		t.Errorf("%s: live blocks are miscounted", what)
	}
	e.must(e.d.Close(ctx))
	if e.kept != nil {
		e.clone(what + ", snapshot")
	}
	return true
}
