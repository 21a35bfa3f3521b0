package lsvd

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"miren.dev/runtime/lsvd/internal/manifest"
	"miren.dev/runtime/lsvd/internal/name"
	"miren.dev/runtime/lsvd/internal/segment"
	"miren.dev/runtime/lsvd/store/storesim"
	"miren.dev/runtime/lsvd/vfs/vfssim"
	"miren.dev/runtime/pkg/errs"
)

// used makes a disk with a checkpoint, segments of cuts and GC, a chain after
// the manifest and a log, without faults.
func used(t *testing.T, seed uint64) *sim {
	s := newSim(t, seed)
	for range 60 {
		s.change()
	}
	s.check("drain", s.d.Drain(s.ctx()))
	_, err := s.d.GC(s.ctx(), 1)
	s.check("gc", err)
	for i := range 30 {
		s.change()
		if i%10 == 9 {
			s.freeze()
			_, err := s.d.publish(s.ctx())
			s.check("publish", err)
		}
	}
	for range 10 {
		s.change()
	}
	s.check("flush", s.d.Flush(s.ctx()))
	s.flushed = s.last()
	return s
}

// objects returns the keys and contents of everything in the store.
func (s *sim) objects() (keys []string, data map[string][]byte) {
	data = map[string][]byte{}
	for i, err := range s.mem.List(s.ctx(), "") {
		s.check("list", err)
		b, _, err := s.mem.Get(s.ctx(), i.Key)
		s.check("get", err)
		keys, data[i.Key] = append(keys, i.Key), b
	}
	return keys, data
}

// withObjects gives the simulation a store of its own with these objects.
func (s *sim) withObjects(data map[string][]byte) {
	s.mem = &storesim.Mem{}
	for k, b := range data {
		_, err := s.mem.Create(s.ctx(), k, b)
		s.check("create", err)
	}
	s.st.Store = s.mem
}

// readOrRefuse opens the disk and reads it. Either may fail, as corrupt; what
// is read must be exactly what the disk was after the sequence number it
// recovered to. It reports whether the damage was noticed.
func (s *sim) readOrRefuse(what string) bool {
	s.t.Helper()
	noticed := func(err error) bool {
		s.t.Helper()
		if !errs.Is(err, errs.Corrupt) && !errs.Is(err, errs.FailedPrecondition) {
			s.fatal("%s: %v", what, err)
		}
		return true
	}
	d, rec, err := Open(s.ctx(), s.st, s.fs, s.id, s.opts)
	if err != nil {
		return noticed(err)
	}
	if err := d.ReadAt(s.ctx(), make([]byte, simBlocks*BlockSize), simBase*BlockSize); err != nil {
		return noticed(err)
	}
	s.compare(what, d, s.history[rec.Last])
	return false
}

func TestFlippedBitInStore(t *testing.T) {
	t.Parallel()
	noticed, kinds := 0, map[string]bool{}
	for seed := range uint64(3) {
		s := used(t, seed)
		s.fs.Kill()
		keys, data := s.objects()
		for i := range 70 {
			key := keys[i%len(keys)]
			if r, ok := name.ParseKey(key); ok {
				kinds[r.Kind.String()] = true
			}
			hurt := map[string][]byte{}
			for k, b := range data {
				hurt[k] = b
			}
			b := bytes.Clone(data[key])
			bit := s.rng.IntN(len(b) * 8)
			if s.rng.IntN(2) == 0 { // more often where structure is
				bit = max(len(b)*8-1-s.rng.IntN(4096), 0)
			}
			b[bit/8] ^= 1 << (bit % 8)
			hurt[key] = b
			s.withObjects(hurt)
			if s.readOrRefuse(key) {
				noticed++
			}
			s.fs.Kill()
		}
	}
	if noticed < 90 || !kinds["data"] || !kinds["gc"] || !kinds["map"] {
		t.Errorf("only %d flipped bits were noticed, in %v", noticed, kinds)
	}
}

func TestFlippedBitInLog(t *testing.T) {
	t.Parallel()
	noticed := 0
	flips := Setting(t, "LSVD_FLIPS", 40)
	for seed := range uint64(flips) {
		s := used(t, seed%10)
		rng := rand.New(rand.NewPCG(seed, 99))
		// More records promise that those before are durable.
		s.d.opts.RemoteFlush = false
		for range 3 {
			s.change()
		}
		names, _ := s.fs.List()
		s.fs.Flip(names[rng.IntN(len(names))], rng.Int64N(200<<10*8))
		if seed%2 == 0 { // while the disk is open
			err := s.d.ReadAt(s.ctx(), make([]byte, simBlocks*BlockSize), simBase*BlockSize)
			if err == nil {
				s.compare("live", s.d, s.history[s.last()])
			} else if !errs.Is(err, errs.Corrupt) {
				s.fatal("read: %v", err)
			} else {
				noticed++
			}
		}
		s.fs.Kill()
		if s.readOrRefuse("log") {
			noticed++
		}
	}
	if noticed < flips/16 {
		t.Errorf("only %d flipped bits were noticed", noticed)
	}
}

func TestMissingSegment(t *testing.T) {
	covered := 0
	for seed := range uint64(12) {
		s := used(t, seed)
		s.fs.Kill()
		keys, data := s.objects()
		var chain []string
		for _, k := range keys {
			r, ok := name.ParseKey(k)
			if ok && r.Kind == name.Data && r.Epoch == s.d.epoch && r.Num+3 >= s.d.man.ChainNext && len(data[k]) > segment.TrailerSize {
				chain = append(chain, k)
			}
		}
		gone := chain[s.rng.IntN(len(chain))]
		x, err := segment.Verify(mustRef(gone), s.d.keys, data[gone])
		s.check("verify", err)
		delete(data, gone)
		s.withObjects(data)
		opts := s.opts
		_, rec, err := Open(s.ctx(), s.st, s.fs, s.id, opts)
		if err == nil && rec.Last == s.last() {
			covered++
			continue // the log still has it all
		}
		if !errs.Is(err, errs.Corrupt) {
			s.fatal("opened without segment %s of %v: %v", gone, chain, err)
		}
		s.fs.Kill()
		manifest, _, err := manifest.Load(s.ctx(), s.st, name.Manifest(s.id))
		s.check("manifest", err)
		if manifest.Durable >= x.First {
			continue // the manifest has it: nothing can be done without it
		}
		opts.AcceptLoss = true
		d, rec, err := Open(s.ctx(), s.st, s.fs, s.id, opts)
		s.check("open", err)
		if !rec.LostAfter || rec.Last < x.First-1 {
			s.fatal("recovered %+v without segment %d-%d", rec, x.First, x.Last)
		}
		s.compare("prefix", d, s.history[rec.Last])
	}
	if covered > 8 {
		t.Errorf("the log had it all in %d of 12", covered)
	}
}

// TestMissingObject deletes one object after the other that the manifest
// names: Open refuses; with the loss accepted, what only it had gives errors,
// never zeros or older data, and the disk works on.
func TestMissingObject(t *testing.T) {
	t.Parallel()
	lost, opened := 0, 0
	for seed := range uint64(6) {
		s := used(t, seed)
		s.check("checkpoint", s.d.checkpoint(s.ctx(), false))
		for range 10 {
			s.change()
		}
		s.check("drain", s.d.Drain(s.ctx()))
		s.check("flush", s.d.Flush(s.ctx()))
		s.fs.Kill()
		m, _, err := manifest.Load(s.ctx(), s.st, name.Manifest(s.id))
		s.check("manifest", err)
		refs := append([]name.Ref(nil), m.Maps...)
		for _, x := range m.Segments {
			refs = append(refs, x.Ref)
		}
		_, data := s.objects()
		history := s.history
		for _, r := range refs {
			hurt := map[string][]byte{}
			for k, b := range data {
				hurt[k] = b
			}
			delete(hurt, r.Key())
			s.withObjects(hurt)
			s.fs = vfssim.New()
			s.log = s.fs
			s.history = history
			opts := s.opts
			_, rec, err := Open(s.ctx(), s.st, s.fs, s.id, opts)
			if !errs.Is(err, errs.FailedPrecondition) && !errs.Is(err, errs.Corrupt) {
				s.fatal("opened without %s: %v", r, err)
			}
			opts.AcceptLoss = true
			d, rec, err := Open(s.ctx(), s.st, s.fs, s.id, opts)
			if r == m.Root.Ref && errs.Is(err, errs.Corrupt) {
				continue // without the directory there is nothing
			}
			s.check("open", err)
			opened++
			if len(rec.Missing) != 1 || rec.Missing[0] != r.Key() {
				s.fatal("missing are %v, want %s", rec.Missing, r)
			}
			s.d, s.history = d, s.history[:rec.Last+1]
			damaged := func() (n int) {
				for i, stamp := range s.history[s.last()] {
					got := make([]byte, BlockSize)
					err := s.d.ReadAt(s.ctx(), got, int64(simBase+i)*BlockSize)
					if errs.Is(err, errs.Corrupt) {
						n++
					} else if s.check("read", err); !bytes.Equal(got, blockOf(i, stamp)) {
						s.fatal("block %d without %s is %x, want stamp %d", i, r, got[:8], stamp)
					}
				}
				return n
			}
			before := damaged()
			lost += before
			for range 10 {
				s.change()
			}
			_, err = s.d.GC(s.ctx(), 1)
			s.check("gc", err)
			after := damaged()
			if after > before {
				s.fatal("%d blocks were lost, now %d", before, after)
			}
			s.check("close", s.d.Close(s.ctx()))
			s.d, _, err = Open(s.ctx(), s.st, s.fs, s.id, opts)
			s.check("open again", err)
			if n := damaged(); n != after {
				s.fatal("%d blocks were lost, after opening again %d", after, n)
			}
			s.fs.Kill()
		}
	}
	if lost == 0 || opened < 10 {
		t.Errorf("%d blocks were lost in %d disks", lost, opened)
	}
}

func mustRef(key string) name.Ref {
	r, _ := name.ParseKey(key)
	return r
}

func TestFailedSyncIsFinal(t *testing.T) {
	s := newSim(t, 3)
	s.opts.RemoteFlush, s.d.opts.RemoteFlush = false, false
	s.change()
	s.check("flush", s.d.Flush(s.ctx()))
	s.change()
	broken := true
	s.fs.FailSync = func(string) error {
		if broken {
			return errs.New(errs.Unavailable, "injected: disk error")
		}
		return nil
	}
	if err := s.d.Flush(s.ctx()); err == nil {
		t.Fatal("flush succeeded on a broken disk")
	}
	broken = false
	if err := s.d.Flush(s.ctx()); err == nil {
		t.Fatal("flush succeeded after one that failed: what was written between may be lost")
	}
	if err := s.d.WriteAt(s.ctx(), make([]byte, BlockSize), 0, 0); err == nil {
		t.Fatal("write succeeded on a log that failed")
	}
	s.compare("read-only", s.d, s.history[s.last()])
}

func TestTwoOwners(t *testing.T) {
	for seed := range uint64(12) {
		s := newSim(t, seed)
		for range 20 {
			s.change()
		}
		s.freeze()
		_, err := s.d.publish(s.ctx())
		s.check("publish", err)
		durable := s.d.man.Durable
		for range 5 {
			s.change()
		}
		old, lost := s.d, s.history[s.last()]
		other := newSim(t, seed) // another host: same store and volume, no log
		other.fs.Kill()
		other.fs.Wipe()
		other.st, other.mem, other.id, other.opts = s.st, s.mem, s.id, s.opts
		rec := other.open(true)
		if rec.Durable < durable || !rec.LostLog {
			s.fatal("took over at %+v, want %d", rec, durable)
		}
		s.check("write before it is known", old.WriteAt(s.ctx(), make([]byte, BlockSize), 0, 0))
		// The old owner fails with its next step to the store, for good.
		if err := old.Drain(s.ctx()); !errs.Is(err, errs.Conflict) {
			s.fatal("drain of a fenced owner: %v", err)
		}
		for what, err := range map[string]error{
			"write": old.WriteAt(s.ctx(), make([]byte, BlockSize), 0, 0), "flush": old.Flush(s.ctx()),
			"read": old.ReadAt(s.ctx(), make([]byte, BlockSize), 0), "checkpoint": old.checkpoint(s.ctx(), false),
		} {
			if !errs.Is(err, errs.Conflict) {
				s.fatal("%s of a fenced owner: %v", what, err)
			}
		}
		other.history = s.history[:rec.Last+1]
		for range 20 {
			other.change()
		}
		other.check("drain", other.d.Drain(s.ctx()))
		other.compare("winner", other.d, other.history[other.last()])
		// The loser's log is of a history that went another way.
		other.check("close", other.d.Close(s.ctx()))
		s.fs.Kill()
		_, rec, err = Open(s.ctx(), s.st, s.log, s.id, s.opts)
		if !errs.Is(err, errs.FailedPrecondition) || rec.Stranded == nil {
			s.fatal("the loser's log is used: %+v, %v", rec, err)
		}
		s.fs.Kill()
		var id ID
		random{s.rng}.Read(id[:])
		s.check("clone", Clone(s.ctx(), s.st, s.id, rec.Stranded.String(), id, s.opts.Key))
		salvaged, _, err := Open(s.ctx(), s.st, vfssim.New(), id, s.opts)
		s.check("open the clone", err)
		_, err = Salvage(s.ctx(), s.log, s.id, *rec.Stranded, salvaged)
		s.check("salvage", err)
		s.compare("salvaged", salvaged, lost)
		s.check("close the clone", salvaged.Close(s.ctx()))
		s.fs.Wipe()
		s.history = other.history
		s.recovered(s.open(false), other.last())
	}
}
