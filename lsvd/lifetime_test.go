package lsvd

import (
	"context"
	"testing"

	"miren.dev/runtime/lsvd/inspect"
	"miren.dev/runtime/lsvd/internal/name"
	"miren.dev/runtime/lsvd/store"
	"miren.dev/runtime/lsvd/vfs"
	"miren.dev/runtime/pkg/errs"
)

// ExpectYoung makes a disk take what was written last for young, as if GC had
// been at work.
func ExpectYoung(d *Device) {
	d.pub.lock(context.Background())
	defer d.pub.unlock()
	d.lifetime = 1000
}

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

// divided makes a disk whose oldest frozen cut becomes two segments: 8 blocks
// that were written in the cut before, and 8 that were not.
func divided(t *testing.T, seed uint64) *sim {
	s := newSim(t, seed)
	s.opts.RemoteFlush, s.d.opts.RemoteFlush = false, false
	s.opts.CutBytes, s.d.opts.CutBytes = 128<<10, 128<<10
	s.put(0, 16)
	s.check("drain", s.d.Drain(s.ctx()))
	ExpectYoung(s.d)
	s.put(4, 4)
	s.put(8, 4)
	s.put(100, 8)
	s.check("flush", s.d.Flush(s.ctx()))
	s.flushed = s.last()
	s.freeze()
	s.d.splitByLifetime(s.d.frozen)
	o := s.d.frozen[0].outputs
	if len(o) != 2 || !o[0].more || o[1].more || !o[1].short || len(o[0].entries) != 1 || o[0].entries[0].LBA != simBase+100 || len(o[1].entries) != 2 {
		s.fatal("the cut becomes %+v", o)
	}
	return s
}

// TestHalfCut: a cut of two segments of which the store has the first is not
// there: with the log nothing is lost, without it the disk goes back to before
// the cut, and who was writing it is fenced.
func TestHalfCut(t *testing.T) {
	t.Parallel()
	for seed := range uint64(12) {
		s := divided(t, seed)
		durable := s.d.man.Durable
		second := s.d.frozen[0].outputs[1].ref.Key()
		s.st.Hook = func(op store.Op, key string) store.Action {
			if op == store.OpCreate && key == second {
				return store.Action{Before: store.Unreachable()}
			}
			return store.Action{}
		}
		if _, err := s.d.publish(s.ctx()); !errs.Is(err, errs.Unavailable) {
			s.fatal("publish: %v", err)
		}
		s.st.Hook = s.hook
		if s.d.man.Durable != durable {
			s.fatal("half a cut counts as durable")
		}
		s.compare("live", s.d, s.history[s.last()])
		first := s.d.frozen[0].outputs[0].ref.Key()
		if _, _, err := s.mem.Get(s.ctx(), first); err != nil {
			s.fatal("the first segment: %v", err)
		}
		old := s.d
		r, err := inspect.Check(s.ctx(), s.mem, s.id, s.opts.Key, true, nil)
		if s.check("check", err); len(r.Damage) > 0 {
			s.fatal("half a cut is damage: %+v", r)
		}
		switch seed % 3 {
		case 0: // the log has it
			s.fs.Kill()
			s.recovered(s.open(false), s.last())
		case 1: // the log is lost
			s.fs.Wipe()
			rec := s.open(true)
			s.recovered(rec, durable)
			if rec.Last != durable || rec.Durable != durable {
				s.fatal("recovered %+v, the store had %d", rec, durable)
			}
		case 2: // another machine takes over, and the owner goes on
			s.fs = vfs.NewSim()
			s.log = s.fs
			s.recovered(s.open(true), durable)
			if err := old.Drain(s.ctx()); !errs.Is(err, errs.Conflict) {
				s.fatal("the old owner goes on: %v", err)
			}
		}
		if _, _, err := Sweep(s.ctx(), s.mem); err != nil {
			t.Fatal(err)
		}
		if _, _, err := s.mem.Get(s.ctx(), first); !errs.Is(err, errs.NotFound) {
			s.fatal("half a cut stays: %v", err)
		}
		if seed%3 != 1 {
			continue
		}
		s.finish()
	}
}

// TestWholeCut: both segments are there, the manifest does not say so yet.
func TestWholeCut(t *testing.T) {
	t.Parallel()
	for seed := range uint64(8) {
		s := divided(t, seed)
		_, err := s.d.publish(s.ctx())
		s.check("publish", err)
		refs := s.d.man.Segments[len(s.d.man.Segments)-2:]
		for _, x := range refs {
			if x.Ref.Kind != name.Data || x.First != 2 || x.Last != s.last() || x.Blocks != 8 {
				s.fatal("segments of the cut are %+v", refs)
			}
		}
		s.fs.Wipe()
		rec := s.open(true)
		s.recovered(rec, s.last())
		if rec.Adopted < 2 {
			s.fatal("recovered %+v", rec)
		}
		// The blocks that were young are written again: their segment is dead as
		// a whole, and goes without GC.
		young := s.d.man.Segments[len(s.d.man.Segments)-1].Ref.Key()
		s.put(4, 8)
		s.check("drain", s.d.Drain(s.ctx()))
		s.check("checkpoint", s.d.checkpoint(s.ctx(), false))
		if _, _, err := s.mem.Get(s.ctx(), young); !errs.Is(err, errs.NotFound) || s.d.Stats().Moved > 0 {
			s.fatal("a dead segment stays: %v", err)
		}
		s.finish()
	}
}
