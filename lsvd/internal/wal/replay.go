package wal

import (
	"slices"

	"golang.org/x/sync/errgroup"

	"miren.dev/runtime/pkg/errs"
)

// Replay calls apply for every extent after the sequence number after, in
// order, that belongs to the history that ends with epoch. It returns the last
// sequence number, which is after if there is none, and up to where the log
// promises that it was durable: if that is more, the log is damaged. It stops
// for good at the first gap.
//
// Of files that are promised as a whole, the index is read, if they have one
// that holds: whether a block is damaged is found when it is read. With all,
// every block of every file is read now.
func (f *Found) Replay(epoch, after uint64, all bool, apply func(*Chunk) error) (last, promised uint64, err error) {
	parts, promised := f.parts(epoch, after)
	if promised, err = load(parts, promised, all); err != nil {
		return after, 0, err
	}
	seq := after
	ended := len(parts) // the part in which replay ended
	var end int64       // and where
	for i := range parts {
		p := &parts[i]
		chunks := p.chunks
		p.parsed.chunks = nil // they are many
		gap := false
		for k := range chunks {
			c := &chunks[k]
			if c.Seq > p.limit {
				break
			}
			if c.Seq <= seq {
				continue
			}
			if gap = c.Seq != seq+1; gap { // only damage makes one
				break
			}
			if err := apply(c); err != nil {
				return seq, 0, err
			}
			seq = c.Seq
			p.file.last = seq
		}
		// The rest of a file matters if the log does not continue behind it.
		stop := gap || i == len(parts)-1
		if !stop {
			n := parts[i+1]
			same := n.file.header.Epoch == p.file.header.Epoch
			stop = seq < p.limit && (!same || n.file.header.First > seq+1)
		}
		if stop {
			ended, end = i, p.end
			if gap {
				end = headerSize
			}
			break
		}
	}
	for i := ended; i < len(parts); i++ {
		p, err := parts[i].file.promise(end)
		if err != nil {
			return seq, 0, err
		}
		promised, end = max(promised, min(p, parts[i].limit)), headerSize
	}
	f.promised = promised
	return seq, promised, nil
}

// part is a file to be replayed, up to a sequence number.
type part struct {
	file  *File
	limit uint64
	*parsed
}

// parts follows the links from the last epoch back to the first, and returns
// what to read: each file up to the limit of its epoch, but not the files that
// end before what is asked for. What an epoch went on from was durable.
func (f *Found) parts(epoch, after uint64) (parts []part, promised uint64) {
	type span struct{ epoch, limit uint64 }
	spans := []span{{epoch, ^uint64(0)}}
	for {
		last := spans[len(spans)-1]
		i := slices.IndexFunc(f.files, func(x *File) bool { return x.header.Epoch == last.epoch })
		if i < 0 {
			break
		}
		h := f.files[i].header
		if h.PrevEpoch >= last.epoch || h.PrevSeq > last.limit {
			break
		}
		spans = append(spans, span{h.PrevEpoch, h.PrevSeq})
	}
	slices.Reverse(spans)
	for _, s := range spans {
		if s.limit != ^uint64(0) {
			promised = max(promised, s.limit) // the next epoch synced it first
		}
		for i, file := range f.files {
			if file.header.Epoch != s.epoch || after >= s.limit {
				continue
			}
			next := slices.IndexFunc(f.files[i+1:], func(x *File) bool { return x.header.Epoch == s.epoch })
			if next >= 0 && f.files[i+1+next].header.First <= after+1 {
				file.last = f.files[i+1+next].header.First - 1
				continue
			}
			parts = append(parts, part{file: file, limit: s.limit})
		}
	}
	return parts, promised
}

const (
	indexesAhead = 16 // how many indexes are read at once
	scanAhead    = 3  // how many files are read whole at once
)

// load reads the parts, and returns what all that is intact in them promises,
// and promised before. An index is enough where everything is promised: what
// was durable is not torn.
func load(parts []part, promised uint64, all bool) (uint64, error) {
	each := func(limit int, f func(p *part) error) error {
		var g errgroup.Group
		g.SetLimit(limit)
		for i := range parts {
			g.Go(func() error { return f(&parts[i]) })
		}
		return g.Wait()
	}
	whole := func() error {
		return each(scanAhead, func(p *part) (err error) {
			if p.parsed == nil {
				p.parsed, err = p.file.parse()
			}
			return err
		})
	}
	if !all {
		if err := each(indexesAhead, func(p *part) (err error) {
			p.parsed, err = p.file.index()
			return err
		}); err != nil {
			return 0, err
		}
	}
	if err := whole(); err != nil {
		return 0, err
	}
	for i := range parts {
		promised = max(promised, min(parts[i].synced, parts[i].limit))
	}
	for i := range parts {
		if p := &parts[i]; p.indexed && min(p.last(), p.limit) > promised {
			p.parsed = nil
		}
	}
	return promised, whole()
}

// Damaged is the error of a log that had promised sequence numbers up to
// promised, and is intact up to last.
func Damaged(last, promised uint64) error {
	return errs.New(errs.Corrupt, "the local log is damaged after sequence %d and had flushed %d", last, promised).
		WithHint("accept that the disk goes back to what it was before the damage, or restore the log directory")
}
