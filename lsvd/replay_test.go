package lsvd

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"miren.dev/runtime/lsvd/store"
	"miren.dev/runtime/lsvd/store/dir"
	"miren.dev/runtime/lsvd/store/storesim"
	"miren.dev/runtime/lsvd/vfs/vfssim"
	"miren.dev/runtime/lsvd/vfs/vfstest"
)

// progress is how far a disk has got: a mark of a recording.
type progress struct {
	issued, acked, flushed uint64   // sequence numbers
	snaps                  []string // that are there
	open                   string   // the one that is being made or deleted
}

// recorded is the run of a disk whose log and store are directories of one
// simulated file system, and what it wrote.
type recorded struct {
	seed    uint64
	id      ID
	opts    Options
	base    *vfssim.Sim // before the first operation
	ops     []vfstest.Op
	history []image
	snaps   map[string]image
}

// record runs a disk for some steps.
func record(t *testing.T, seed uint64, steps int) *recorded {
	rng := rand.New(rand.NewPCG(seed, 31))
	root := filepath.Join(t.TempDir(), "store")
	var events vfstest.Recording
	st, err := dir.OpenTraced(root, traced(root, &events, nil))
	if err != nil {
		t.Fatal(err)
	}
	s := &sim{t: t, seed: seed, rng: rng, fs: vfssim.New(), history: make([]image, 1), st: &storesim.Fault{Store: st}, trims: rand.New(rand.NewPCG(seed, 32))}
	random{rng}.Read(s.id[:])
	s.opts = Options{manual: true, Random: random{rng}, LogFile: 256 << 10, CutBytes: 16 << 10, MaxUnsent: 1 << 20, CacheBytes: 1 << 20, Checkpoint: 3, Compression: CompressAll}
	r := &recorded{seed: seed, id: s.id, opts: s.opts, base: vfssim.New(), snaps: map[string]image{}}
	r.base.Mkdir("log")
	r.base.SyncDir()
	s.log = vfstest.FS(s.fs, &events, "log", nil)
	s.check("create", Create(s.ctx(), st, s.id, (simBase+simBlocks)*BlockSize, nil))
	s.open(false)
	var snaps []string
	mark := func(acked uint64, snap string) {
		events.Mark(progress{issued: s.last() + 1, acked: acked, flushed: s.flushed, snaps: slices.Clone(snaps), open: snap})
	}
	mark(0, "")
	ctx := s.ctx()
	for range steps {
		switch k := rng.IntN(100); {
		case k < 45:
			mark(s.last(), "")
			s.change()
		case k < 55:
			s.check("flush", s.d.Flush(ctx))
			s.flushed = s.last()
		case k < 60:
			s.freeze()
		case k < 72:
			_, err := s.d.publish(ctx)
			s.check("publish", err)
		case k < 76:
			s.check("maintenance", s.d.runMaintenance(ctx))
		case k < 79:
			s.check("make log files", s.d.wal.Fill())
		case k < 81:
			s.d.wal.Trim(1)
		case k < 84:
			_, err := s.d.wal.Advance()
			s.check("advance", err)
		case k < 88:
			_, err := s.d.GC(ctx, 1.1)
			s.check("gc", err)
		case k < 92:
			n := fmt.Sprintf("s%d", len(r.snaps))
			mark(s.last(), n)
			r.snaps[n] = s.history[s.last()]
			s.check("snapshot", s.d.Snapshot(ctx, n))
			snaps = append(snaps, n)
		case k < 95 && len(snaps) > 0:
			mark(s.last(), snaps[0])
			s.check("delete snapshot", DeleteSnapshot(ctx, st, s.id, snaps[0]))
			snaps = snaps[1:]
		case k < 97:
			_, _, err := Sweep(ctx, st)
			s.check("sweep", err)
		default:
			s.fs.Kill()
			s.recovered(s.open(false), s.last())
		}
		mark(s.last(), "")
	}
	r.ops, r.history = events.Ops(), s.history
	return r
}

// traced records the changes of a directory store at root as those below "store".
func traced(root string, r *vfstest.Recording, drop func(vfstest.Kind, string) bool) dir.Trace {
	at := func(path string) string {
		if path == filepath.Dir(root) {
			return ""
		}
		return "store" + strings.TrimPrefix(path, root)
	}
	return func(kind, path, to string, data []byte, do func() error) error {
		o := vfstest.Op{Kind: vfstest.Kind(kind), Path: at(path), Data: data}
		if to != "" {
			o.To = at(to)
		}
		if o.Kind == vfstest.Sync || o.Kind == vfstest.SyncDir {
			o.Site = vfstest.Site()
			do = func() error { return nil } // the machine that loses power is simulated
		}
		return r.Do(o, do)
	}
}

// losses are ways to lose power.
var losses = []struct {
	name string
	pick func(rng *rand.Rand) vfssim.Pick
}{
	{"nothing that is not synced", func(*rand.Rand) vfssim.Pick { return func(vfssim.Unsynced, int) int { return 0 } }},
	{"everything", func(*rand.Rand) vfssim.Pick { return func(_ vfssim.Unsynced, n int) int { return n - 1 } }},
	{"names, no data", func(*rand.Rand) vfssim.Pick {
		return func(u vfssim.Unsynced, n int) int {
			if u.Kind == vfssim.Name {
				return n - 1
			}
			return 0
		}
	}},
	{"data, no names", func(*rand.Rand) vfssim.Pick {
		return func(u vfssim.Unsynced, n int) int {
			if u.Kind == vfssim.Name {
				return 0
			}
			return n - 1
		}
	}},
	{"every other piece", func(*rand.Rand) vfssim.Pick {
		return func(u vfssim.Unsynced, n int) int {
			if u.Kind == vfssim.Data && u.Piece%2 == 1 {
				return 0
			}
			return n - 1
		}
	}},
	{"by chance", func(rng *rand.Rand) vfssim.Pick {
		keep := 1 + rng.IntN(9)
		return func(u vfssim.Unsynced, n int) int {
			if u.Kind != vfssim.Torn && rng.IntN(10) < keep {
				return n - 1
			}
			return rng.IntN(n)
		}
	}},
}

// replay replays the recording, loses power at one of so many operations in each
// of the ways, and checks the disk. Syncs of sites that drop names are left out. It
// returns how many states it has checked, and the first that fails.
func (r *recorded) replay(t *testing.T, every int, drop func(vfstest.Kind, string) bool) (states int, err error) {
	rng := rand.New(rand.NewPCG(r.seed, 33))
	now := r.base.Clone()
	var at *progress
	for i := range r.ops {
		o := &r.ops[i]
		if p, ok := o.Mark.(progress); ok {
			at = &p
		}
		if drop != nil && o.Site != "" && drop(o.Kind, o.Site) {
			continue
		}
		if err := o.Apply(now); err != nil {
			return states, fmt.Errorf("operation %d, %s %s: %w", i, o.Kind, o.Path, err)
		}
		if at == nil || rng.IntN(every) > 0 {
			continue
		}
		for k, l := range losses {
			states++
			s := now.Clone()
			s.Crash(l.pick(rng))
			if err := r.check(t, s, at, k, drop); err != nil {
				return states, fmt.Errorf("seed %d, power loss after operation %d of %d (%s %s), which leaves %s: %w", r.seed, i, len(r.ops), o.Kind, o.Path, l.name, err)
			}
		}
	}
	return states, nil
}

// check opens what a power loss has left: the disk has every flushed write, a
// prefix of the others, and the snapshots; and it has the same after one more.
func (r *recorded) check(t *testing.T, s *vfssim.Sim, at *progress, loss int, drop func(vfstest.Kind, string) bool) error {
	root, err := os.MkdirTemp(t.TempDir(), "")
	if err != nil {
		return err
	}
	defer os.RemoveAll(root)
	for path, data := range s.Files("store") {
		path = filepath.Join(root, path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, data, 0o600)); err != nil {
			return err
		}
	}
	st, err := dir.OpenTraced(root, func(kind, _, _ string, _ []byte, do func() error) error {
		if strings.HasPrefix(kind, "sync") {
			return nil // its machine is simulated
		}
		return do()
	})
	if err != nil {
		return err
	}
	opts := r.opts
	opts.Random = random{rand.New(rand.NewPCG(r.seed, 34))}
	ctx := t.Context()
	open := func(least, most uint64) (uint64, error) {
		d, rec, err := Open(ctx, st, vfstest.FS(s.Sub("log"), nil, "", drop), r.id, opts)
		if err != nil {
			return 0, err
		}
		if rec.Last < least || rec.Last > most || rec.LostLog || rec.LostAfter {
			return 0, fmt.Errorf("recovered %+v, want %d to %d", rec, least, most)
		}
		if err := sameImage(t, d, r.history[rec.Last]); err != nil {
			return 0, fmt.Errorf("recovered sequence %d: %w", rec.Last, err)
		}
		return rec.Last, nil
	}
	least := at.flushed
	if loss == 1 {
		least = at.acked
	}
	last, err := open(least, min(at.issued, uint64(len(r.history)-1)))
	if err != nil {
		return err
	}
	snaps, err := Snapshots(ctx, st, r.id)
	if err != nil {
		return err
	}
	but := func(name string) bool { return name == at.open }
	if have, want := slices.DeleteFunc(slices.Clone(snaps), but), slices.DeleteFunc(slices.Sorted(slices.Values(at.snaps)), but); !slices.Equal(have, want) {
		return fmt.Errorf("snapshots %q, want %q", have, want)
	}
	if loss == 1 { // once is enough: it is slow
		for _, n := range snaps {
			if err := r.checkSnapshot(t, st, n); err != nil {
				return fmt.Errorf("snapshot %s: %w", n, err)
			}
		}
	}
	s.Crash(func(vfssim.Unsynced, int) int { return 0 })
	if _, err := open(last, last); err != nil {
		return fmt.Errorf("after one more power loss: %w", err)
	}
	return nil
}

// checkSnapshot compares a snapshot through a clone.
func (r *recorded) checkSnapshot(t *testing.T, st store.Store, n string) error {
	id := NewID()
	if err := Clone(t.Context(), st, r.id, n, id, r.opts.Key); err != nil {
		return err
	}
	d, _, err := Open(t.Context(), st, vfssim.New(), id, r.opts)
	if err != nil {
		return err
	}
	return sameImage(t, d, r.snaps[n])
}

func sameImage(t *testing.T, d *Device, want image) error {
	buf := make([]byte, simBlocks*BlockSize)
	if err := d.ReadAt(t.Context(), buf, simBase*BlockSize); err != nil {
		return err
	}
	for i, stamp := range want {
		if !bytes.Equal(buf[i*BlockSize:(i+1)*BlockSize], blockOf(i, stamp)) {
			return fmt.Errorf("block %d is not of write %d", i, stamp)
		}
	}
	return nil
}

// TestReplay loses power at many operations of recorded runs.
func TestReplay(t *testing.T) {
	t.Parallel()
	first, seeds := Seeds(t, 2)
	for seed := first; seed < first+seeds; seed++ {
		r := record(t, uint64(seed), 150)
		states, err := r.replay(t, Setting(t, "LSVD_REPLAY", 40), nil)
		if err != nil {
			t.Error(err)
		}
		t.Logf("seed %d: %d operations, %d states", seed, len(r.ops), states)
	}
}

// sites are the functions that sync a file or a directory of names, and why a
// disk needs no such sync to survive a power loss. Without any other, replay
// finds a disk that does not. Not here: wal.(*File).distrust, which syncs a log
// that is damaged already, and makes its damage be found sooner.
var sites = map[string]string{
	"sync wal.Start":                   "",
	"sync wal.(*Log).syncFiles":        "",
	"syncdir wal.(*Log).syncFiles":     "",
	"syncdir wal.(*Log).make":          "",
	"sync wal.prewrite":                "it spares later syncs the metadata; a file becomes durable with the first sync after it is used",
	"sync dir.(*Store).write":          "",
	"syncdir dir.(*Store).Create":      "",
	"syncdir dir.(*Store).Replace":     "",
	"syncdir dir.(*Store).Delete":      "",
	"syncdir dir.(*Store).makeParents": "",
}

// TestEverySyncIsNeeded leaves out the syncs of one function after the other, and
// expects replay to find a disk that does not survive.
func TestEverySyncIsNeeded(t *testing.T) {
	t.Parallel()
	runs := []*recorded{record(t, 100, 200), record(t, 101, 200)}
	seen := map[string]bool{}
	for _, r := range runs {
		for _, o := range r.ops {
			if o.Site != "" {
				seen[string(o.Kind)+" "+o.Site] = true
			}
		}
	}
	for site := range seen {
		if _, ok := sites[site]; !ok {
			t.Errorf("%s is not known", site)
		}
	}
	for site, spare := range sites {
		if !seen[site] {
			t.Errorf("%s is never called", site)
			continue
		}
		if spare != "" {
			continue
		}
		var err error
		states, n := 0, 0
		for _, every := range []int{20, 10, 2} { // often a few states are enough
			for _, r := range runs {
				n, err = r.replay(t, every, func(k vfstest.Kind, s string) bool { return string(k)+" "+s == site })
				if states += n; err != nil {
					break
				}
			}
			if err != nil {
				break
			}
		}
		if err == nil {
			t.Errorf("%s: replay finds nothing wrong in %d states without it", site, states)
		} else {
			t.Logf("%s, after %d states: %v", site, states, err)
		}
	}
}
