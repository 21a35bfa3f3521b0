package lsvd

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"miren.dev/runtime/lsvd/internal/name"
	"miren.dev/runtime/lsvd/store"
	"miren.dev/runtime/lsvd/store/storesim"
	"miren.dev/runtime/lsvd/vfs/vfssim"
	"miren.dev/runtime/pkg/errs"
)

const (
	scheduleBlocks  = 16 // of each volume
	scheduleVolumes = 6  // at most
	scheduleSnaps   = 6  // at most
	scheduleDepth   = 3  // how many operations are interrupted at the same time
)

// blocks is the content of a volume: the byte that each block is full of.
type blocks [scheduleBlocks]byte

func (b *blocks) bytes() []byte {
	var p []byte
	for _, x := range b {
		p = append(p, bytes.Repeat([]byte{x}, BlockSize)...)
	}
	return p
}

// snap names a snapshot. No two have the same name.
type snap struct {
	id   ID
	name string
}

// served is a volume with the daemon that serves it.
type served struct {
	id      ID
	fs      *vfssim.Sim
	by      *interposed // the requests of d
	d       *Device     // nil: nothing serves it
	content blocks
	busy    bool // an operation of it is under way
}

// schedule is several daemons, one for each volume, with one store. Between two requests of an operation others run to
// their end, which are interrupted in turn. An operation may be killed before any of its requests. The seed alone decides
// what happens.
type schedule struct {
	t       *testing.T
	seed    uint64
	rng     *rand.Rand
	st      *storesim.Mem
	volumes map[ID]*served
	snaps   map[snap]blocks
	n       int      // volumes and snapshots that were named
	kills   int      // operations that were killed
	nested  int      // operations that ran between two requests of another
	trace   []string // operations, as they begin and end
}

func newSchedule(t *testing.T, seed uint64) *schedule {
	s := &schedule{t: t, seed: seed, rng: rand.New(rand.NewPCG(seed, 11)), st: &storesim.Mem{}, volumes: map[ID]*served{}, snaps: map[snap]blocks{}}
	for range 2 {
		id := s.newID()
		s.check("create", Create(t.Context(), s.st, id, scheduleBlocks*BlockSize, nil))
		s.volumes[id] = &served{id: id, fs: vfssim.New()}
	}
	return s
}

func (s *schedule) newID() ID {
	s.n++
	return ID{byte(s.n), byte(s.n >> 8), 1}
}

func (s *schedule) fatal(format string, args ...any) {
	s.t.Helper()
	s.t.Fatalf("seed %d: %s\nlast operations:\n%s", s.seed, fmt.Sprintf(format, args...), strings.Join(s.trace[max(0, len(s.trace)-60):], "\n"))
}

func (s *schedule) check(what string, err error) {
	s.t.Helper()
	if err != nil {
		s.fatal("%s: %v", what, err)
	}
}

// store returns the store of an operation at a depth.
func (s *schedule) store(depth int) *interposed {
	left := -1
	if s.rng.IntN(12) == 0 {
		left = s.rng.IntN(15)
	}
	killed := false
	return &interposed{Store: s.st, each: func() error {
		if left == 0 {
			left, killed = -1, true
			s.kills++
		}
		if killed {
			return errKilled
		}
		left--
		for depth < scheduleDepth && s.rng.IntN(4) == 0 {
			s.nested++
			s.operate(depth + 1)
		}
		return nil
	}}
}

// pick returns one of the elements for which ok holds, in an order that the seed decides.
func pick[K comparable, V any](s *schedule, from map[K]V, compare func(a, b K) int, ok func(V) bool) (k K, v V, found bool) {
	keys := slices.SortedFunc(maps.Keys(from), compare)
	keys = slices.DeleteFunc(keys, func(k K) bool { return !ok(from[k]) })
	if len(keys) == 0 {
		return k, v, false
	}
	k = keys[s.rng.IntN(len(keys))]
	return k, from[k], true
}

func compareID(a, b ID) int { return bytes.Compare(a[:], b[:]) }

func compareSnap(a, b snap) int { return strings.Compare(a.name, b.name) }

func (s *schedule) pickSnap() (snap, blocks, bool) {
	return pick(s, s.snaps, compareSnap, func(blocks) bool { return true })
}

// operate runs one operation to its end, or until it is killed.
func (s *schedule) operate(depth int) {
	switch r := s.rng.IntN(100); {
	case r < 70:
		if _, v, ok := pick(s, s.volumes, compareID, func(v *served) bool { return !v.busy }); ok {
			s.use(v, r, depth)
		}
	case r < 80:
		if from, want, ok := s.pickSnap(); ok && len(s.volumes) < scheduleVolumes {
			s.clone(from, want, depth)
		}
	case r < 90:
		if n, want, ok := s.pickSnap(); ok {
			delete(s.snaps, n)
			done := s.begin(depth, "delete snapshot %s of %x", n.name, n.id[:2])
			err := DeleteSnapshot(s.t.Context(), s.store(depth), n.id, n.name)
			if done(err) && s.has(name.Snapshots(n.id)+n.name) {
				s.snaps[n] = want
			}
		}
	default:
		done := s.begin(depth, "sweep")
		_, _, err := Sweep(s.t.Context(), s.store(depth))
		if errs.Is(err, errs.Unavailable) {
			err = nil // volumes and snapshots came and went too fast for it
		}
		done(err)
	}
}

// begin notes an operation. The returned function notes its end, and reports whether it was killed.
func (s *schedule) begin(depth int, format string, args ...any) func(error) (killed bool) {
	what := strings.Repeat("  ", depth) + fmt.Sprintf(format, args...)
	s.trace = append(s.trace, what)
	return func(err error) bool {
		s.t.Helper()
		s.trace = append(s.trace, fmt.Sprintf("%s: %v", what, err))
		if errors.Is(err, errKilled) {
			return true
		}
		s.check(what, err)
		return false
	}
}

func (s *schedule) has(key string) bool {
	_, _, err := s.st.Get(s.t.Context(), key)
	if err != nil && !errs.Is(err, errs.NotFound) {
		s.fatal("%s: %v", key, err)
	}
	return err == nil
}

func (s *schedule) clone(from snap, want blocks, depth int) {
	id := s.newID()
	done := s.begin(depth, "clone %s as %x", from.name, id[:2])
	err := Clone(s.t.Context(), s.store(depth), from.id, from.name, id, nil)
	_, there := s.snaps[from]
	if !there && errs.Is(err, errs.NotFound) {
		err = nil // the snapshot was deleted meanwhile
	}
	killed := done(err)
	switch {
	case !s.has(name.Manifest(id)):
	case killed && !there:
		// It was killed before it saw that the snapshot was deleted meanwhile: its objects may be gone.
		s.check("delete", Delete(s.t.Context(), s.st, id))
	default:
		s.volumes[id] = &served{id: id, fs: vfssim.New(), content: want}
	}
}

// use has the daemon of a volume do something.
func (s *schedule) use(v *served, r, depth int) {
	v.busy = true
	defer func() { v.busy = false }()
	ctx := s.t.Context()
	if v.d == nil {
		done := s.begin(depth, "open %x", v.id[:2])
		if done(s.open(v, depth)) {
			v.kill()
		}
		return
	}
	v.by.each = s.store(depth).each
	defer func() {
		if v.by != nil {
			v.by.each = nil
		}
	}()
	var err error
	var done func(error) bool
	switch {
	case r < 25:
		first := s.rng.IntN(scheduleBlocks)
		n, stamp := 1+s.rng.IntN(scheduleBlocks-first), byte(1+s.rng.IntN(255))
		done = s.begin(depth, "write %x", v.id[:2])
		each := v.by.each
		v.by.each = nil // the log takes it without the store
		s.check("write", v.d.WriteAt(ctx, bytes.Repeat([]byte{stamp}, n*BlockSize), int64(first)*BlockSize, 0))
		v.by.each = each
		for i := range n {
			v.content[first+i] = stamp
		}
		err = v.d.Drain(ctx)
	case r < 40:
		done = s.begin(depth, "checkpoint %x", v.id[:2])
		err = v.d.checkpoint(ctx, false)
	case r < 50:
		done = s.begin(depth, "collect %x", v.id[:2])
		_, err = v.d.GC(ctx, 1)
	case r < 58:
		if len(s.snaps) >= scheduleSnaps {
			return
		}
		s.n++
		n := snap{v.id, fmt.Sprintf("s%04d", s.n)}
		done = s.begin(depth, "snapshot %s of %x", n.name, v.id[:2])
		err = v.d.Snapshot(ctx, n.name)
		if s.has(name.Snapshots(v.id) + n.name) {
			s.snaps[n] = v.content
		}
	case r < 64:
		done = s.begin(depth, "close %x", v.id[:2])
		if err = v.d.Close(ctx); err == nil {
			v.d, v.by = nil, nil
		}
	default:
		s.remove(v, depth)
		return
	}
	if done(err) {
		v.kill()
	}
}

// kill ends the daemon of a volume.
func (v *served) kill() {
	v.fs.Kill()
	v.d, v.by = nil, nil
}

func (s *schedule) open(v *served, depth int) error {
	by := s.store(depth)
	d, _, err := Open(s.t.Context(), by, v.fs, v.id, Options{
		manual: true, Random: random{s.rng}, LogFile: 64 << 10, CutBytes: 64 << 10, MaxUnsent: 1 << 20, Compression: CompressNone, CacheBytes: 1, Checkpoint: 2,
	})
	if err != nil {
		return err
	}
	by.each = nil
	v.d, v.by = d, by
	return nil
}

// remove closes and deletes a volume that has no snapshots.
func (s *schedule) remove(v *served, depth int) {
	for n := range s.snaps {
		if n.id == v.id {
			return
		}
	}
	if len(s.volumes) < 3 {
		return
	}
	done := s.begin(depth, "delete %x", v.id[:2])
	err := v.d.Close(s.t.Context())
	if err == nil {
		v.d, v.by = nil, nil
		err = Delete(s.t.Context(), s.store(depth), v.id)
	}
	// The deletion of a snapshot that was killed, or is under way, may hold the volume.
	if errs.Is(err, errs.FailedPrecondition) || errs.Is(err, errs.Conflict) {
		err = nil
	}
	if done(err) {
		v.kill()
	}
	if !s.has(name.Manifest(v.id)) {
		delete(s.volumes, v.id)
	}
}

// read compares what a volume has in the store with its content.
func (s *schedule) read(what string, st store.Store, fs *vfssim.Sim, id ID, want blocks) {
	s.t.Helper()
	d, _, err := Open(s.t.Context(), st, fs, id, Options{manual: true, CacheBytes: 1})
	s.check(what, err)
	got := make([]byte, scheduleBlocks*BlockSize)
	s.check(what, d.ReadAt(s.t.Context(), got, 0))
	if !bytes.Equal(got, want.bytes()) {
		s.fatal("%s %x has lost its content", what, id[:2])
	}
	s.check(what, d.Close(s.t.Context()))
}

// finish checks that nothing is lost, deletes everything, and checks that nothing stays.
func (s *schedule) finish() {
	ctx := s.t.Context()
	for _, id := range slices.SortedFunc(maps.Keys(s.volumes), compareID) {
		v := s.volumes[id]
		if v.d != nil {
			s.check("close", v.d.Close(ctx))
		}
		s.read("volume", s.st, v.fs, id, v.content)
	}
	_, _, err := Sweep(ctx, s.st)
	s.check("sweep", err)
	for _, n := range slices.SortedFunc(maps.Keys(s.snaps), compareSnap) {
		id := s.newID()
		s.check("clone", Clone(ctx, s.st, n.id, n.name, id, nil))
		s.check("delete snapshot", DeleteSnapshot(ctx, s.st, n.id, n.name))
		s.volumes[id] = &served{id: id, fs: vfssim.New(), content: s.snaps[n]}
	}
	ids := slices.SortedFunc(maps.Keys(s.volumes), compareID)
	for _, id := range ids {
		s.read("volume", s.st, s.volumes[id].fs, id, s.volumes[id].content)
	}
	for _, id := range ids {
		s.check("delete", Delete(ctx, s.st, id))
	}
	if s.kills > 0 { // TestSweepDeletesMarks: they go a day later
		for i := range s.st.List(ctx, "clones/") {
			s.check("delete mark", s.st.Delete(ctx, i.Key))
		}
	}
	for range 2 {
		_, _, err := Sweep(ctx, s.st)
		s.check("sweep", err)
	}
	for i := range s.st.List(ctx, "") {
		if s.kills == 0 || !strings.HasPrefix(i.Key, name.Sweeps) {
			s.fatal("%s is there after everything was deleted", i.Key)
		}
	}
}

// TestDaemonsShareAStore runs daemons, clones, deletions and sweeps between the requests of each other: no object is lost
// that a volume, a clone or a snapshot names, and none stays. A failure prints its seed; see Seeds.
func TestDaemonsShareAStore(t *testing.T) {
	t.Parallel()
	first, seeds := Seeds(t, 12)
	nested, kills := 0, 0
	var trace []string
	for seed := first; seed < first+seeds; seed++ {
		for again := range 2 {
			s := newSchedule(t, uint64(seed))
			for range 80 {
				s.operate(0)
			}
			s.finish()
			nested, kills = nested+s.nested, kills+s.kills
			if again == 1 && !slices.Equal(s.trace, trace) {
				t.Errorf("seed %d runs in two ways", seed)
			}
			trace = s.trace
			if seed > first {
				break // one seed shows that it alone decides
			}
		}
	}
	t.Logf("%d operations between two requests of another, %d killed", nested, kills)
	if seeds >= 12 && (nested < 40*seeds || kills < seeds) {
		t.Errorf("of %d seeds only %d operations ran between two requests of another, and %d were killed", seeds, nested, kills)
	}
}
