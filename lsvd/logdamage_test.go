package lsvd

import (
	"bytes"
	"testing"

	"miren.dev/runtime/lsvd/inspect"
	"miren.dev/runtime/pkg/errs"
)

// logged makes a disk whose store has nothing: it is all in a log of many
// files, which promises all but the last record.
func logged(t *testing.T, seed uint64) *sim {
	s := newSim(t, seed)
	s.check("close", s.d.Close(s.ctx()))
	s.opts.MaxUnsent, s.opts.RemoteFlush = 64<<20, false
	s.open(false)
	for range 150 {
		s.change()
	}
	s.check("flush", s.d.Flush(s.ctx()))
	s.flushed = s.last()
	s.check("write", s.d.WriteAt(s.ctx(), blockOf(0, uint32(len(s.history))), simBase*BlockSize, 0))
	im := s.history[s.last()]
	im[0] = uint32(len(s.history))
	s.history = append(s.history, im)
	return s
}

// inLog finds where the log has the block with the stamp.
func (s *sim) inLog(lba int, stamp uint32) (file string, off int64) {
	s.t.Helper()
	names, err := s.fs.List()
	s.check("list", err)
	for _, n := range names {
		b := s.file(n)
		for off := 4096; off+BlockSize <= len(b); off += 512 {
			if bytes.Equal(b[off:off+BlockSize], blockOf(lba, stamp)) {
				return n, int64(off)
			}
		}
	}
	s.fatal("the log does not have block %d with stamp %d", lba, stamp)
	return "", 0
}

func (s *sim) file(name string) []byte {
	s.t.Helper()
	f, err := s.fs.Open(name, false)
	s.check("open", err)
	size, err := f.Size()
	s.check("size", err)
	b := make([]byte, size)
	_, err = f.ReadAt(b, 0)
	s.check("read", err)
	return b
}

// oldest is a block of the disk that was written early, and by which change.
func (s *sim) oldest() (lba int, stamp uint32) {
	for i, st := range s.history[s.last()] {
		if st != 0 && (stamp == 0 || st < stamp) {
			lba, stamp = i, st
		}
	}
	return lba, stamp
}

// TestDamagedBlockInLog damages a block of what the log promises. The disk
// opens, since it does not look at it; the block is never served and its cut is
// never sent; from then on the disk is refused, as damaged, and with the loss
// accepted it is what it was before that block was written.
func TestDamagedBlockInLog(t *testing.T) {
	for seed := range uint64(6) {
		s := logged(t, seed)
		lba, stamp := s.oldest()
		if _, err := inspect.CheckLog(s.ctx(), s.st, s.fs, s.id, s.opts.Key); !errs.Is(err, errs.Conflict) {
			s.fatal("check of a log in use: %v", err)
		}
		s.fs.Kill()
		if r, err := inspect.CheckLog(s.ctx(), s.st, s.fs, s.id, s.opts.Key); err != nil || !r.Here || r.Damage != nil || r.Last != s.last() || r.Bytes == 0 {
			s.fatal("check of a sound log: %+v %v", r, err)
		}
		name, off := s.inLog(lba, stamp)
		s.fs.Flip(name, off*8+s.rng.Int64N(BlockSize*8))
		if r, err := inspect.CheckLog(s.ctx(), s.st, s.fs, s.id, s.opts.Key); err != nil || !errs.Is(r.Damage, errs.Corrupt) || r.Last != uint64(stamp)-1 {
			s.fatal("check of a log damaged at %d: %+v %v", stamp, r, err)
		}
		if rec := s.open(false); rec.Last != s.last() {
			s.fatal("recovered %d of %d", rec.Last, s.last())
		}
		if seed%2 == 0 {
			err := s.d.ReadAt(s.ctx(), make([]byte, BlockSize), int64(simBase+lba)*BlockSize)
			if !errs.Is(err, errs.Corrupt) || errs.HintOf(err) == "" {
				s.fatal("read of a damaged block: %v", err)
			}
			for i, stamp := range s.history[s.last()] {
				got := make([]byte, BlockSize)
				if i == lba {
					continue
				}
				s.check("read of another block", s.d.ReadAt(s.ctx(), got, int64(simBase+i)*BlockSize))
				if !bytes.Equal(got, blockOf(i, stamp)) {
					s.fatal("block %d differs", i)
				}
			}
		}
		if seed%3 != 0 {
			if err := s.d.Drain(s.ctx()); !errs.Is(err, errs.Corrupt) || errs.HintOf(err) == "" {
				s.fatal("drain of a damaged log: %v", err)
			}
			if s.d.man.Durable >= uint64(stamp) {
				s.fatal("sent up to %d, which is damaged from %d on", s.d.man.Durable, stamp)
			}
			if err := s.d.WriteAt(s.ctx(), make([]byte, BlockSize), 0, 0); !errs.Is(err, errs.Corrupt) {
				s.fatal("write to a disk that cannot be sent: %v", err)
			}
		}
		s.fs.Kill()
		if seed%2 != 0 && seed%3 == 0 { // nobody met the damage
			s.open(false)
			s.fs.Kill()
		} else if _, _, err := Open(s.ctx(), s.st, s.fs, s.id, s.opts); !errs.Is(err, errs.Corrupt) {
			s.fatal("opened with a log that is known to be damaged: %v", err)
		}
		s.fs.Kill()
		rec := s.open(true)
		if !rec.LostAfter || rec.Last != uint64(stamp)-1 {
			s.fatal("recovered %+v, damaged is %d", rec, stamp)
		}
		s.recovered(rec, 0)
		for range 20 {
			s.change()
		}
		s.check("close", s.d.Close(s.ctx()))
		s.recovered(s.open(false), s.last())
	}
}

// TestDamagedIndexOfLog flips bits of the heads that the log has twice: in its
// records and in the indexes of its files. One of them is enough.
func TestDamagedIndexOfLog(t *testing.T) {
	indexes := 0
	for seed := range uint64(10) {
		s := logged(t, seed)
		s.fs.Kill()
		lba, stamp := s.oldest()
		name, off := s.inLog(lba, stamp)
		b := s.file(name)
		if bytes.Equal(b[len(b)-80:][:8], []byte("LSVDLIDX")) {
			indexes++
			off = int64(len(b) - 1 - s.rng.IntN(400))
		}
		if seed%2 == 0 { // the first record
			off = 4096 + s.rng.Int64N(64)
		}
		s.fs.Flip(name, off*8+s.rng.Int64N(8))
		s.recovered(s.open(false), s.last())
		s.check("close", s.d.Close(s.ctx()))
	}
	if indexes < 10 {
		t.Errorf("only %d of 10 files have an index", indexes)
	}
}

// TestDamagedWitness: a segment is missing though a later one exists, and the
// log should have what it had, as after a crash while both were on their way.
// An index that says so does not count: the blocks do.
func TestDamagedWitness(t *testing.T) {
	for seed := range uint64(6) {
		s := logged(t, seed)
		hurt := seed%2 == 0
		lba, stamp := s.oldest()
		k := 0
		for s.d.frozen[k].last < uint64(stamp) {
			k++
		}
		s.check("send", s.d.uploadCut(s.ctx(), s.d.frozen[k+1], s.d.chainRef(k+1)))
		s.fs.Kill()
		if hurt {
			name, off := s.inLog(lba, stamp)
			s.fs.Flip(name, off*8)
		}
		_, rec, err := Open(s.ctx(), s.st, s.fs, s.id, s.opts)
		if hurt != errs.Is(err, errs.Corrupt) || !hurt && rec.Last != s.last() {
			s.fatal("damaged %v, recovered %+v: %v", hurt, rec, err)
		}
	}
}
