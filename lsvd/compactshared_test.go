package lsvd

import (
	"bytes"
	"context"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"miren.dev/runtime/lsvd/inspect"
	"miren.dev/runtime/lsvd/store"
	"miren.dev/runtime/lsvd/vfs"
)

// clones are open disks that share segments which none of them uses whole.
type clones struct {
	t      *testing.T
	mem    *store.Mem
	opts   Options
	ids    []ID
	logs   []*vfs.Sim
	disks  []*Device
	models [][]byte
}

const cloneBlocks = 64

// newClones makes three disks in mem, which they see through st.
func newClones(t *testing.T, seed uint64, mem *store.Mem, st store.Store) *clones {
	t.Helper()
	ctx := t.Context()
	rng := rand.New(rand.NewPCG(seed, 1))
	c := &clones{t: t, mem: mem, opts: Options{manual: true, Random: random{rng}, LogFile: 256 << 10, CutBytes: 64 << 10, MaxUnsent: 1 << 20, CacheBytes: 1 << 20, Checkpoint: 3}}
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for i := range 3 {
		var id ID
		random{rng}.Read(id[:])
		c.ids = append(c.ids, id)
		if i == 0 {
			check(Create(ctx, mem, id, cloneBlocks*BlockSize, nil))
		} else {
			check(Clone(ctx, mem, c.ids[0], "s", id))
		}
		fs := vfs.NewSim()
		d, _, err := Open(ctx, st, fs, id, c.opts)
		check(err)
		c.disks, c.logs = append(c.disks, d), append(c.logs, fs)
		if i == 0 {
			c.models = [][]byte{make([]byte, cloneBlocks*BlockSize)}
			for n := range 2 * cloneBlocks {
				c.write(0, rng.IntN(cloneBlocks), uint32(n+1))
			}
			check(d.Drain(ctx))
			check(d.Snapshot(ctx, "s"))
		} else {
			c.models = append(c.models, bytes.Clone(c.models[0]))
		}
	}
	check(DeleteSnapshot(ctx, mem, c.ids[0], "s"))
	for i, d := range c.disks {
		for n := range 40 { // mostly the same blocks, so that they are dead for all
			c.write(i, rng.IntN(cloneBlocks/2), uint32(1000*(i+1)+n))
		}
		check(d.Drain(ctx))
	}
	return c
}

func (c *clones) write(i, lba int, stamp uint32) {
	c.t.Helper()
	b := blockOf(lba, stamp)
	copy(c.models[i][lba*BlockSize:], b)
	if err := c.disks[i].WriteAt(c.t.Context(), b, int64(lba)*BlockSize, 0); err != nil {
		c.t.Fatal(err)
	}
}

func (c *clones) same(what string, i int, d *Device) {
	c.t.Helper()
	got := make([]byte, cloneBlocks*BlockSize)
	if err := d.ReadAt(c.t.Context(), got, 0); err != nil {
		c.t.Fatalf("%s: disk %d: %v", what, i, err)
	}
	if !bytes.Equal(got, c.models[i]) {
		c.t.Fatalf("%s: disk %d differs from its model", what, i)
	}
}

// whole opens all disks from the store and what logs are left, and checks them
// and all objects, before and after everything is collected.
func (c *clones) whole(what string, kept bool) {
	c.t.Helper()
	ctx := c.t.Context()
	for round := range 2 {
		if _, _, err := Sweep(ctx, c.mem); err != nil {
			c.t.Fatalf("%s: %v", what, err)
		}
		for i, id := range c.ids {
			opts, fs := c.opts, vfs.FS(vfs.NewSim())
			opts.AcceptLoss = !kept
			if kept {
				c.logs[i].Kill()
				fs = c.logs[i]
			}
			d, _, err := Open(ctx, c.mem, fs, id, opts)
			if err != nil {
				c.t.Fatalf("%s: open disk %d: %v", what, i, err)
			}
			c.same(what, i, d)
			if round == 0 {
				if _, err := d.GC(ctx, 1); err != nil {
					c.t.Fatalf("%s: GC of disk %d: %v", what, i, err)
				}
			}
			if err := d.Close(ctx); err != nil {
				c.t.Fatalf("%s: close disk %d: %v", what, i, err)
			}
			r, err := inspect.Check(ctx, c.mem, id, nil, true, nil)
			if err != nil || !r.OK() {
				c.t.Fatalf("%s: check disk %d: %+v, %v", what, i, r.Damage, err)
			}
		}
	}
}

// TestCompactShared: what several disks share is stored once, without what
// none of them uses; a disk in another store, and one that a snapshot or
// another volume shares, are left alone.
func TestCompactShared(t *testing.T) {
	mem := &store.Mem{}
	c := newClones(t, 1, mem, mem)
	ctx := t.Context()
	if n, err := CompactShared(ctx, 1, c.disks[0], c.disks[0]); n != 0 || err != nil {
		t.Fatalf("one disk: %d, %v", n, err)
	}
	if n, err := CompactShared(ctx, 1, c.disks[:2]...); n != 0 || err != nil {
		t.Fatalf("two of three that share: %d, %v", n, err)
	}
	elsewhere := &store.Mem{}
	o := newClones(t, 2, elsewhere, elsewhere)
	n, err := CompactShared(ctx, 1, append(o.disks[:1:1], c.disks...)...)
	if n == 0 || err != nil {
		t.Fatalf("%d segments, %v", n, err)
	}
	if n, err := CompactShared(ctx, 1, c.disks...); n != 0 || err != nil {
		t.Fatalf("again: %d segments, %v", n, err)
	}
	for i, d := range c.disks {
		c.same("compacted", i, d)
		c.write(i, 5, 77) // and they go on
		if err := d.Drain(ctx); err != nil {
			t.Fatal(err)
		}
		if err := d.Close(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	c.whole("compacted", false)
}

// TestCompactSharedEndsAnywhere stops it at each operation on the store, one
// run for each: the process is killed, or the answer is lost, or one of the
// volumes is taken over by somebody who collects and sweeps at once.
func TestCompactSharedEndsAnywhere(t *testing.T) {
	ctx := t.Context()
	for _, how := range []string{"kill", "lost", "take over 0", "take over 1", "take over 2"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			for k, done := 1, false; !done; k++ {
				mem := &store.Mem{}
				st := &store.Fault{Store: mem}
				c := newClones(t, 3, mem, st)
				var other *Device
				ops := 0
				who := int(how[len(how)-1] - '0')
				st.Hook = func(store.Op, string) store.Action {
					ops++
					switch {
					case how == "kill" && ops >= k:
						return store.Action{Before: store.Unreachable()}
					case how == "lost" && ops >= k:
						if ops == k {
							return store.Action{After: store.Unreachable()}
						}
						return store.Action{Before: store.Unreachable()}
					case ops == k:
						return store.Action{Race: func() {
							o := c.opts
							o.AcceptLoss, o.Random = true, random{rand.New(rand.NewPCG(4, uint64(k)))}
							var err error
							if other, _, err = Open(ctx, mem, vfs.NewSim(), c.ids[who], o); err != nil {
								t.Fatal(err)
							}
							mine := c.disks[who]
							c.disks[who] = other
							c.write(who, 9, uint32(5000+k))
							c.disks[who] = mine
							for _, f := range []func() error{
								func() error { return other.Drain(ctx) },
								func() error { _, err := other.GC(ctx, 1); return err },
								func() error { return other.checkpoint(ctx, false) },
								func() error { _, _, err := Sweep(ctx, mem); return err },
							} {
								if err := f(); err != nil {
									t.Fatalf("operation %d: the other: %v", k, err)
								}
							}
						}}
					}
					return store.Action{}
				}
				_, err := CompactShared(ctx, 1, c.disks...)
				done = ops < k
				st.Hook = nil
				if done {
					if err != nil {
						t.Fatalf("there were %d operations: %v", ops, err)
					}
					if k < 20 {
						t.Fatalf("there were only %d operations", ops)
					}
				}
				if other != nil {
					// The maker goes on and collects what it dropped; the new owner too.
					for i, d := range c.disks {
						if i != who && d.Err() == nil {
							c.same("beside a new owner", i, d)
							if err := d.checkpoint(ctx, false); err != nil {
								t.Fatalf("operation %d: disk %d: %v", k, i, err)
							}
						}
					}
					if err := other.Close(ctx); err != nil {
						t.Fatalf("operation %d: the other closes: %v", k, err)
					}
				}
				c.whole(how, how == "kill" || how == "lost")
			}
		})
	}
}

// TestCloseBesideCompaction: a disk can be closed while disks are compacted
// together and the store does not answer. What was begun is given up, and is
// no error for the others.
func TestCloseBesideCompaction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := &store.Mem{}
		st := &store.Fault{Store: mem}
		c := newClones(t, 1, mem, st)
		for _, d := range c.disks {
			d.opts.manual = false // they try again
		}
		var away atomic.Bool
		away.Store(true)
		st.Hook = func(op store.Op, _ string) store.Action {
			if op == store.OpCreate && away.Load() {
				return store.Action{Before: store.Unreachable()}
			}
			return store.Action{}
		}
		ended := make(chan error, 1)
		go func() { _, err := CompactShared(t.Context(), 1, c.disks...); ended <- err }()
		time.Sleep(time.Minute)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		closed := make(chan error, 1)
		go func() { closed <- c.disks[1].Close(ctx) }()
		time.Sleep(10 * time.Second)
		select {
		case <-closed:
		default:
			t.Error("a disk is not closed since the store is away")
		}
		away.Store(false)
		if err := <-ended; err != nil {
			t.Errorf("compacting the others: %v", err)
		}
		c.whole("closed", true)
	})
}
