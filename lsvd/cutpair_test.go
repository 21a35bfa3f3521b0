package lsvd

import (
	"testing"

	"miren.dev/runtime/lsvd/inspect"
	"miren.dev/runtime/lsvd/internal/name"
	"miren.dev/runtime/lsvd/internal/segment"
	"miren.dev/runtime/pkg/errs"
)

// put writes n blocks.
func (s *sim) put(lba, n int) {
	s.t.Helper()
	s.history = append(s.history, s.history[s.last()])
	var p []byte
	for i := range n {
		s.history[s.last()][lba+i] = uint32(s.last())
		p = append(p, blockOf(lba+i, uint32(s.last()))...)
	}
	s.check("write", s.d.WriteAt(s.ctx(), p, int64(simBase+lba)*BlockSize, 0))
}

// cutPair makes a disk whose only frozen cut is two segments of 8 blocks each, as the
// format permits. It stores so many of them.
func cutPair(t *testing.T, seed uint64, stored int) (*sim, []name.Ref) {
	s := newSim(t, seed)
	s.opts.RemoteFlush, s.d.opts.RemoteFlush = false, false
	s.opts.CutBytes, s.d.opts.CutBytes = 128<<10, 128<<10
	s.put(0, 16)
	s.check("drain", s.d.Drain(s.ctx()))
	s.put(4, 8)
	s.put(100, 8)
	s.check("flush", s.d.Flush(s.ctx()))
	s.flushed = s.last()
	s.freeze()
	c := s.d.frozen[0]
	entries := c.entries()
	if len(entries) != 2 {
		s.fatal("the cut has %+v", entries)
	}
	var refs []name.Ref
	for i, e := range entries {
		ref := s.d.chainRef(i)
		refs = append(refs, ref)
		b, err := segment.Build(segment.Head{Ref: ref, First: c.first, Last: c.last, Plain: s.d.plain, More: i == 0}, s.d.keys, s.d.opts.Random, entries[i:i+1],
			func(_ int, first uint64, p []byte) error {
				chunk, _, _ := c.over.Get(e.LBA + first)
				return c.chunk(chunk.Src).Read(p, uint64(chunk.Off))
			})
		s.check("build", err)
		if i < stored {
			_, err := s.mem.Create(s.ctx(), ref.Key(), b)
			s.check("create", err)
		}
	}
	return s, refs
}

// TestHalfCut: a cut of two segments of which the store has the first is not
// there: with the log nothing is lost, without it the disk goes back to before
// the cut.
func TestHalfCut(t *testing.T) {
	t.Parallel()
	for seed := range uint64(8) {
		s, refs := cutPair(t, seed, 1)
		durable := s.d.man.Durable
		r, err := inspect.Check(s.ctx(), s.mem, s.id, s.opts.Key, true, nil)
		if s.check("check", err); len(r.Damage) > 0 {
			s.fatal("half a cut is damage: %+v", r)
		}
		if seed%2 == 0 { // the log has it
			s.fs.Kill()
			s.recovered(s.open(false), s.last())
		} else { // the log is lost
			s.fs.Wipe()
			rec := s.open(true)
			s.recovered(rec, durable)
			if rec.Last != durable || rec.Durable != durable {
				s.fatal("recovered %+v, the store had %d", rec, durable)
			}
		}
		if _, _, err := Sweep(s.ctx(), s.mem); err != nil {
			t.Fatal(err)
		}
		if _, _, err := s.mem.Get(s.ctx(), refs[0].Key()); !errs.Is(err, errs.NotFound) {
			s.fatal("half a cut stays: %v", err)
		}
		s.finish()
	}
}

// TestWholeCut: both segments are there, the manifest does not say so yet.
func TestWholeCut(t *testing.T) {
	t.Parallel()
	for seed := range uint64(8) {
		s, refs := cutPair(t, seed, 2)
		last := s.last()
		s.fs.Wipe()
		rec := s.open(true)
		s.recovered(rec, last)
		if rec.Adopted < 2 {
			s.fatal("recovered %+v", rec)
		}
		for n := range s.takeovers() { // it has the segments too
			s.check("delete snapshot", DeleteSnapshot(s.ctx(), s.mem, s.id, n))
			delete(s.snaps, n)
		}
		// The blocks of the second are written again: it is dead as a whole, and
		// goes without GC.
		s.put(100, 8)
		s.check("drain", s.d.Drain(s.ctx()))
		s.check("checkpoint", s.d.checkpoint(s.ctx(), false))
		if _, _, err := s.mem.Get(s.ctx(), refs[1].Key()); !errs.Is(err, errs.NotFound) || s.d.Stats().Moved > 0 {
			s.fatal("a dead segment stays: %v", err)
		}
		s.finish()
	}
}
