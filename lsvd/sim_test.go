package lsvd

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/lsvd/internal/name"
	"miren.dev/runtime/lsvd/store/storesim"
	"miren.dev/runtime/lsvd/vfs"
	"miren.dev/runtime/lsvd/vfs/vfssim"
	"miren.dev/runtime/lsvd/vfs/vfstest"
	"miren.dev/runtime/pkg/errs"
)

// Setting is the number in an environment variable that make soak raises.
func Setting(t *testing.T, name string, short int) int {
	t.Helper()
	v := os.Getenv(name)
	if v == "" {
		return short
	}
	n, err := strconv.Atoi(v)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

// Seeds are those to run: short of them from 0 on. LSVD_SEED is the first one,
// alone unless LSVD_SEEDS says how many.
func Seeds(t *testing.T, short int) (first, n int) {
	t.Helper()
	if first = Setting(t, "LSVD_SEED", -1); first < 0 {
		return 0, Setting(t, "LSVD_SEEDS", short)
	}
	return first, Setting(t, "LSVD_SEEDS", 1)
}

const (
	simBlocks = 256
	simBase   = 384 // where they are on the disk: in two leaves of the map
)

// image is the content of the simulated disk: a stamp per block, 0 is zeros.
type image [simBlocks]uint32

// sim runs one disk, single-threaded, against its model. Every operation takes
// one sequence number, so history[seq] is the disk after it.
type sim struct {
	t       check
	seed    uint64
	rng     *rand.Rand
	fs      *vfssim.Sim
	log     vfs.FS // fs, or what records it
	mem     *storesim.Mem
	st      *storesim.Fault
	id      ID
	opts    Options
	d       *Device
	history []image
	flushed uint64 // sequence number that survives a power loss
	faults  int    // percent of store operations that go wrong
	snaps   map[string]image
	snapN   int
	clones  map[ID]image    // of snapshots that were deleted then
	hurt    map[string]bool // keys whose last read was cut off
	files   *vfssim.Sim     // of the disk cache, if there is one
	decay   *rand.Rand      // what happens to it
	now     time.Time
	clock   *rand.Rand // how it goes on
	trims   *rand.Rand // when free files of the log are removed
	lists   int        // boot lists at the end
	asked   int        // how often it was asked who the owner is
	marks   bool       // a sweep failed, and may have left its mark
}

// random makes an io.Reader of a deterministic source.
type random struct{ *rand.Rand }

func (r random) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = byte(r.Uint32())
	}
	return len(p), nil
}

var _ io.Reader = random{}

// check is what a simulation needs of a test.
type check interface {
	Helper()
	Context() context.Context
	Fatalf(format string, args ...any)
}

func newSim(t check, seed uint64) *sim { return recordedSim(t, seed, nil) }

// recordedSim is newSim whose log, and operations on the store, are recorded.
func recordedSim(t check, seed uint64, events *vfstest.Recording) *sim {
	rng := rand.New(rand.NewPCG(seed, 7))
	s := &sim{t: t, seed: seed, rng: rng, fs: vfssim.New(), mem: &storesim.Mem{}, history: make([]image, 1), snaps: map[string]image{}, clones: map[ID]image{}, hurt: map[string]bool{}}
	s.log, s.st = s.fs, &storesim.Fault{Store: s.mem, Hook: s.hook}
	if events != nil {
		s.log = vfstest.FS(s.fs, events, "", nil)
		s.st.Hook = func(op storesim.Op, key string) storesim.Action {
			if strings.HasPrefix(key, name.Sweeps) {
				key = name.Sweeps // its name is random
			}
			events.Mark(string(op) + " " + key)
			return s.hook(op, key)
		}
	}
	random{rng}.Read(s.id[:])
	s.now, s.clock = time.Unix(1e9, 0), rand.New(rand.NewPCG(seed, 9))
	s.opts = Options{manual: true, Random: random{rng}, LogFile: 256 << 10, CutBytes: []int64{16 << 10, 128 << 10}[rng.IntN(2)],
		OwnerCheck: time.Duration(2+rng.IntN(20)) * time.Second, MaxUnsent: 1 << 20, MapBytes: []int64{1, 1 << 20}[rng.IntN(2)], CacheBytes: []int64{0, 256 << 10, 8 << 20}[rng.IntN(3)], Checkpoint: 1 + rng.IntN(6), RemoteFlush: rng.IntN(4) == 0,
		Now: func() time.Time { return s.now }}
	s.trims = rand.New(rand.NewPCG(seed, 10))
	if s.opts.CacheBytes == 0 {
		s.opts.CacheBytes = 1 // too small for any frame
	}
	if rng.IntN(3) == 0 {
		s.opts.Key = bytes.Repeat([]byte{byte(seed)}, 32)
	}
	if seed%4 == 3 {
		s.files, s.decay = vfssim.New(), rand.New(rand.NewPCG(seed, 8))
		s.openCache()
	}
	s.check("create", Create(s.ctx(), s.mem, s.id, (simBase+simBlocks)*BlockSize, s.opts.Key))
	s.open(false)
	return s
}

func (s *sim) ctx() context.Context { return s.t.Context() }

func (s *sim) fatal(format string, args ...any) {
	s.t.Helper()
	s.t.Fatalf("seed %d: %s", s.seed, fmt.Sprintf(format, args...))
}

func (s *sim) check(what string, err error) {
	s.t.Helper()
	if err != nil {
		s.fatal("%s: %v", what, err)
	}
}

func (s *sim) hook(op storesim.Op, key string) storesim.Action {
	if s.rng.IntN(100) >= s.faults {
		return storesim.Action{}
	}
	if s.hurt[key] {
		delete(s.hurt, key) // a transfer is cut off once, not for ever
		return storesim.Action{}
	}
	switch s.rng.IntN(4) {
	case 0:
		return storesim.Action{Before: storesim.Unreachable()}
	case 1:
		return storesim.Action{After: storesim.Unreachable()}
	case 2:
		s.hurt[key] = true
		return storesim.Action{Truncate: true}
	}
	return storesim.Action{Stale: true}
}

func (s *sim) last() uint64 { return uint64(len(s.history) - 1) }

// open opens the disk, again and again while the store misbehaves.
func (s *sim) open(acceptLoss bool) Recovery {
	s.t.Helper()
	opts := s.opts
	opts.AcceptLoss = acceptLoss
	for try := 0; ; try++ {
		d, rec, err := Open(s.ctx(), s.st, s.log, s.id, opts)
		if err == nil {
			s.d = d
			if !acceptLoss {
				return rec
			}
			for n, t := range s.takeovers() {
				if _, known := s.snaps[n]; !known && t.Durable < uint64(len(s.history)) {
					s.snaps[n] = s.history[t.Durable]
				}
			}
			return rec
		}
		switch c := errs.ClassOf(err); {
		case s.faults > 0 && (c == errs.Unavailable || c == errs.Conflict || c == errs.FailedPrecondition):
			// The latter two come of stale reads: the claim was taken, or the
			// manifest from before the clean close wants a log.
		default:
			s.fatal("open: %v", err)
		}
		if try == 50 {
			s.faults = 0 // the store gets well
		}
	}
}

// takeovers returns the snapshots that takeovers have kept, by name.
func (s *sim) takeovers() map[string]Takeover {
	found := map[string]Takeover{}
	for i := range s.mem.List(s.ctx(), name.Snapshots(s.id)) {
		n := strings.TrimPrefix(i.Key, name.Snapshots(s.id))
		if t, ok := ParseTakeover(n); ok {
			found[n] = t
		}
	}
	return found
}

// recovered checks that the disk is exactly what it was after rec.Last, which
// must lie between least and the last operation.
func (s *sim) recovered(rec Recovery, least uint64) {
	s.t.Helper()
	if rec.Last < least || rec.Last > s.last() {
		s.fatal("recovered sequence %d (durable %d), want %d to %d", rec.Last, rec.Durable, least, s.last())
	}
	s.history = s.history[:rec.Last+1]
	s.flushed = rec.Last // Open syncs what it recovers
	s.compare("recovered", s.d, s.history[rec.Last])
}

func (s *sim) compare(what string, d *Device, want image) {
	s.t.Helper()
	saved := s.faults
	s.faults = 0
	defer func() { s.faults = saved }()
	buf := make([]byte, simBlocks*BlockSize)
	rand.NewChaCha8([32]byte{1}).Read(buf[:64]) // stale content must not shine through
	s.check("read all", d.ReadAt(s.ctx(), buf, simBase*BlockSize))
	for i, stamp := range want {
		if !bytes.Equal(buf[i*BlockSize:(i+1)*BlockSize], blockOf(i, stamp)) {
			got := binary.LittleEndian.Uint32(buf[i*BlockSize+4:])
			s.fatal("%s: block %d has stamp %d, want %d (sequence %d)", what, i, got, stamp, s.last())
		}
	}
}

func blockOf(lba int, stamp uint32) []byte {
	b := make([]byte, BlockSize)
	if stamp != 0 {
		binary.LittleEndian.PutUint32(b, uint32(lba))
		binary.LittleEndian.PutUint32(b[4:], stamp)
		for n := 8; n < len(b); n *= 2 { // as few accesses as can be: the race detector looks at each
			copy(b[n:], b[:n])
		}
	}
	return b
}

// soft ignores failures of a store that fails on purpose.
func (s *sim) soft(what string, err error) bool {
	s.t.Helper()
	if err != nil && (s.faults == 0 || !errs.Is(err, errs.Unavailable)) {
		s.fatal("%s: %v", what, err)
	}
	return err == nil
}

func (s *sim) change() {
	im := s.history[s.last()]
	stamp := uint32(len(s.history))
	lba := s.rng.IntN(simBlocks)
	n := 1 + s.rng.IntN(min(16, simBlocks-lba))
	flags := Flags(0)
	if s.rng.IntN(10) == 0 {
		flags = FUA
	}
	var err error
	ctx := s.ctx()
	off := int64(simBase+lba) * BlockSize
	s.history = append(s.history, im)
	now := &s.history[s.last()]
	switch s.rng.IntN(8) {
	case 0, 1:
		n = 1 + s.rng.IntN(simBlocks-lba)
		size := int64(n) * BlockSize
		stamp = 0
		if s.rng.IntN(2) == 0 {
			err = s.d.Zero(ctx, off, size, flags)
		} else {
			err = s.d.Trim(ctx, off, size, flags)
		}
	default:
		p := make([]byte, 0, n*BlockSize)
		for i := range n {
			p = append(p, blockOf(lba+i, stamp)...)
		}
		err = s.d.WriteAt(ctx, p, off, flags)
	}
	for i := range n {
		now[lba+i] = stamp
	}
	// In RemoteFlush mode a write with FUA is logged even if the store fails. One
	// that finds no room in the log, and a store that fails, is not.
	full := s.opts.LogSpace != nil && s.faults > 0 && errs.Is(err, errs.ResourceExhausted)
	if !full && s.soft("change", err) && flags&FUA != 0 {
		s.flushed = s.last()
	}
	if d := s.d; d.active.last != s.last() && (len(d.frozen) == 0 || d.frozen[len(d.frozen)-1].last != s.last()) && d.man.Durable != s.last() {
		// The store was too far behind to admit it.
		s.history = s.history[:s.last()]
	}
}

func (s *sim) freeze() {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	s.d.freeze()
}

// sendAhead creates the segment of a cut that is not the next one, as a crash
// may find it when several are on their way.
func (s *sim) sendAhead() {
	if n := len(s.d.frozen); n > 1 {
		k := 1 + s.rng.IntN(n-1)
		s.check("sync", s.d.wal.SyncTo(s.d.frozen[k].last))
		s.soft("send", s.d.uploadCut(s.ctx(), s.d.frozen[k], s.d.chainRef(k)))
	}
}

// openCache opens the disk cache, which has room for a part of the disk. A disk
// that is open keeps the one it has, which may be dead.
func (s *sim) openCache() {
	c, err := OpenDiskCache(s.files, 6*(64<<10+200), nil)
	s.check("open disk cache", err)
	s.opts.DiskCache = c
}

// hurtCache does to the disk cache what its disk may do to it.
func (s *sim) hurtCache() {
	switch s.decay.IntN(40) {
	case 0, 1:
		s.files.Flip("cache-data", s.decay.Int64N(6*64<<10*8))
	case 2:
		s.files.Flip("cache-table", s.decay.Int64N(5000*8))
	case 3:
		s.files.PowerLoss(s.decay)
		s.openCache()
	case 4:
		s.files.Kill()
		s.openCache()
	}
}

func (s *sim) step() {
	ctx := s.ctx()
	if s.files != nil {
		s.hurtCache()
	}
	if s.rng.IntN(4) == 0 {
		_, err := s.d.wal.Advance()
		s.check("advance", err)
	}
	if s.trims.IntN(8) == 0 {
		if err := s.d.wal.Fill(); !errs.Is(err, errs.ResourceExhausted) {
			s.check("make log files", err)
		}
	}
	if s.trims.IntN(8) == 0 {
		s.d.wal.Trim(s.trims.IntN(3))
	}
	if s.clock.IntN(4) == 0 {
		s.d.FlushEarly() // as a frontend does that thinks a flush is due
	}
	s.now = s.now.Add(time.Duration(s.clock.IntN(4000)) * time.Millisecond)
	if s.d.sinceConfirmed() >= s.opts.OwnerCheck && s.soft("ask for the owner", s.d.askOwner(ctx)) {
		s.asked++
		if s.d.sinceConfirmed() != 0 {
			s.fatal("the store has confirmed the owner, and it is not noted")
		}
	}
	switch r := s.rng.IntN(100); {
	case r < 60:
		s.change()
	case r < 66:
		if s.soft("flush", s.d.Flush(ctx)) {
			s.flushed = s.last()
			if s.opts.RemoteFlush && s.d.man.Durable != s.last() {
				s.fatal("flush returned before the store had the data")
			}
		}
	case r < 72:
		s.freeze()
	case r < 73:
		s.sendAhead()
	case r < 80:
		_, err := s.d.publish(ctx)
		s.soft("publish", err)
	case r < 84:
		s.soft("tend", s.d.runMaintenance(ctx))
	case r < 86:
		s.soft("checkpoint", s.d.checkpoint(ctx, false))
	case r < 88:
		_, err := s.d.GC(ctx, 1+s.rng.Float64())
		s.soft("gc", err)
	case r < 89:
		s.compare("live", s.d, s.history[s.last()])
	case r < 90:
		_, _, err := Sweep(ctx, s.st)
		s.marks = !s.soft("sweep", err) || s.marks
	case r < 91:
		s.d.evict(true) // what was not used since the last time
	case r < 92:
		if len(s.snaps) < 5 {
			s.snapN++
			n := fmt.Sprintf("s%d", s.snapN)
			if s.soft("snapshot", s.d.Snapshot(ctx, n)) {
				s.snaps[n] = s.history[s.last()]
			} else {
				s.mem.Delete(ctx, name.Snapshots(s.id)+n) // its outcome is unknown
			}
		}
	case r < 93:
		for i := 1; i <= s.snapN; i++ {
			n := fmt.Sprintf("s%d", i)
			if want, ok := s.snaps[n]; ok {
				if i%2 == 0 { // what a clone names is no longer in a snapshot
					id := ID{0xc1, byte(i)}
					s.check("clone", Clone(ctx, s.mem, s.id, n, id, s.opts.Key))
					s.clones[id] = want
				}
				s.check("delete snapshot", DeleteSnapshot(ctx, s.mem, s.id, n))
				delete(s.snaps, n)
				break
			}
		}
	case r < 95:
		s.fs.Kill()
		s.recovered(s.open(false), s.last())
	case r < 97:
		s.fs.PowerLoss(s.rng)
		s.recovered(s.open(false), max(s.flushed, s.d.man.Durable))
	case r < 98:
		durable := s.d.man.Durable
		s.fs.Wipe()
		if s.faults == 0 {
			if _, _, err := Open(ctx, s.st, s.log, s.id, s.opts); !errs.Is(err, errs.FailedPrecondition) {
				s.fatal("opened without its log and without asking: %v", err)
			}
			s.fs.Kill()
		}
		rec := s.open(true)
		s.recovered(rec, durable)
	case r < 99:
		if s.soft("close", s.d.Close(ctx)) && s.rng.IntN(2) == 0 {
			s.fs.Wipe() // a clean volume needs no log
		}
		s.recovered(s.open(false), s.last())
	default:
		s.faults = []int{0, 0, 10, 40}[s.rng.IntN(4)]
	}
}

// finish checks the snapshots through clones, and that deletion frees space.
func (s *sim) finish() {
	ctx := s.ctx()
	s.faults = 0
	s.check("drain", s.d.Drain(ctx))
	s.compare("final", s.d, s.history[s.last()])
	s.check("close", s.d.Close(ctx))
	ids := []ID{s.id}
	for _, n := range slices.Sorted(maps.Keys(s.snaps)) {
		want := s.snaps[n]
		var id ID
		random{s.rng}.Read(id[:])
		ids = append(ids, id)
		s.check("clone", Clone(ctx, s.st, s.id, n, id, s.opts.Key))
		s.check("delete snapshot", DeleteSnapshot(ctx, s.st, s.id, n))
		fs := vfssim.New()
		d, _, err := Open(ctx, s.st, fs, id, s.opts)
		s.check("open clone", err)
		s.compare("clone", d, want)
		p := blockOf(3, 99)
		s.check("write clone", d.WriteAt(ctx, p, (simBase+3)*BlockSize, 0))
		_, err = d.GC(ctx, 1)
		s.check("gc of clone", err)
		want[3] = 99
		s.compare("diverged clone", d, want)
		s.check("close clone", d.Close(ctx))
	}
	for _, id := range slices.SortedFunc(maps.Keys(s.clones), func(a, b ID) int { return bytes.Compare(a[:], b[:]) }) {
		d, _, err := Open(ctx, s.st, vfssim.New(), id, s.opts)
		s.check("open clone", err)
		s.compare("clone without its snapshot", d, s.clones[id])
		s.check("close clone", d.Close(ctx))
		ids = append(ids, id)
	}
	_, _, err := Sweep(ctx, s.st)
	s.check("sweep", err)
	for i := range s.mem.List(ctx, name.Objects) {
		if r, _ := name.ParseKey(i.Key); r.Kind == name.Boot {
			s.lists++
		}
	}
	s.recovered(s.open(false), s.last())
	s.check("close", s.d.Close(ctx))
	s.rng.Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
	for _, id := range ids {
		s.check("delete", Delete(ctx, s.st, id))
		_, _, err := Sweep(ctx, s.st)
		s.check("sweep", err)
	}
	for i := range s.mem.List(ctx, "") {
		if s.marks && strings.HasPrefix(i.Key, name.Sweeps) {
			continue
		}
		s.fatal("%s is left after everything was deleted", i.Key)
	}
}

// TestSimulation runs random operations, crashes and store faults; a failure
// prints its seed; see Seeds.
func TestSimulation(t *testing.T) {
	t.Parallel()
	first, seeds := Seeds(t, 40)
	lists, asked := 0, 0
	for seed := first; seed < first+seeds; seed++ {
		s := newSim(t, uint64(seed))
		if seed%3 == 1 {
			s.opts.LogSpace = NewLogSpace(1) // three files of the log
			s.check("close", s.d.Close(s.ctx()))
			s.recovered(s.open(false), s.last())
		}
		for range 150 {
			s.step()
		}
		s.finish()
		lists += s.lists
		asked += s.asked
	}
	t.Logf("%d boot lists, asked %d times for the owner", lists, asked)
	if seeds >= 40 && (lists == 0 || asked < seeds) {
		t.Errorf("of %d disks %d had boot lists; they asked %d times for the owner", seeds, lists, asked)
	}
}

// TestSameSeedSameEvents runs seeds twice: the log is written, and the store
// asked, in the same way.
func TestSameSeedSameEvents(t *testing.T) {
	t.Parallel()
	first, seeds := Seeds(t, 4)
	before := ""
	for seed := first; seed < first+seeds; seed++ {
		var digests [2]string
		for i := range digests {
			events := &vfstest.Recording{Forget: true}
			s := recordedSim(t, uint64(seed), events)
			for range 100 {
				s.step()
			}
			s.finish()
			digests[i] = events.Digest()
		}
		if digests[0] != digests[1] || digests[0] == before {
			t.Errorf("seed %d: events %s, then %s; of the seed before %s", seed, digests[0], digests[1], before)
		}
		before = digests[0]
	}
}
