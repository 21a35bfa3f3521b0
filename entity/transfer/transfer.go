// Package transfer copies the content of an entity store into an empty one of
// another kind of database. Neither is in use meanwhile.
//
// In: two stores that are open offline, which each backend has (OpenOffline). Out:
// the second one holds every entity and lease of the first. The first is as it was.
//
// Entities are copied as they are stored, so ids, revisions, times and sealed
// secrets stay the same, in the same bytes. The position of the new store is
// eval.PrevMargin revisions after that of the old one, since it has no log. Its
// epoch is a new one, so watchers list again. Each lease gets its full time when
// the first server opens the new store. Indexes are built then.
//
// The history (entity.History) is not copied.
package transfer

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"maps"
	"time"

	"miren.dev/runtime/entity/eval"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// Lease is a lease of a store.
type Lease struct {
	ID    schema.LeaseID
	TTL   time.Duration
	Ended bool // it has entities left, and is not renewed any more
}

// Item is one entity or one lease.
type Item struct {
	Entity *eval.Object // without what is extracted from it
	Lease  *Lease
}

// Store is a store that is open offline.
type Store interface {
	// Read calls f for every entity and lease at one revision, which it returns. A
	// store that was never written has revision 0. Errors: those of f, Unavailable,
	// Corrupt.
	Read(ctx context.Context, f func(Item) error) (schema.Revision, error)
	// Write fills the store with what fill puts, at the revision that fill returns.
	// After an error or a kill the store counts as empty, and can be written again.
	// Errors: those of fill, FailedPrecondition (NotEmpty), Unavailable.
	Write(ctx context.Context, fill func(put func(Item) error) (schema.Revision, error)) error
	Close()
}

// NotEmpty is the error of a target that holds something.
func NotEmpty() error {
	return errs.New(errs.FailedPrecondition, "the target is not empty").
		WithHint("choose another one, or remove what it has: a copy never mixes with other entities")
}

// NoStore is the error of a source that does not exist.
func NoStore(where string) error {
	return errs.New(errs.NotFound, "there is no store at %s", where)
}

// Content says what a store holds. Two stores with the same content have an equal
// one.
type Content struct {
	Kinds  map[string]int // number of entities by kind
	Leases int
	Bytes  int64
	digest [sha256.Size]byte
}

// Entities returns how many there are.
func (c *Content) Entities() int {
	n := 0
	for _, k := range c.Kinds {
		n += k
	}
	return n
}

// Digest returns the digest of all entities and leases, whatever their order is.
func (c *Content) Digest() string { return hex.EncodeToString(c.digest[:]) }

func (c *Content) equal(o *Content) bool {
	return maps.Equal(c.Kinds, o.Kinds) && c.Leases == o.Leases && c.Bytes == o.Bytes && c.digest == o.digest
}

// add counts an item. The digest is the sum of those of all items.
func (c *Content) add(it Item) {
	h := sha256.New()
	if l := it.Lease; l != nil {
		c.Leases++
		h.Write(append([]byte("lease\x00"), l.ID...))
		if !l.Ended { // the databases keep TTLs in different units
			h.Write(binary.BigEndian.AppendUint64([]byte{0}, uint64(l.TTL.Microseconds())))
		}
	} else {
		if c.Kinds == nil {
			c.Kinds = map[string]int{}
		}
		c.Kinds[it.Entity.Rec.Kind]++
		c.Bytes += int64(len(it.Entity.Raw))
		h.Write(append([]byte("entity\x00"), it.Entity.Raw...))
	}
	carry := uint16(0)
	for i, b := range h.Sum(nil) {
		carry += uint16(c.digest[i]) + uint16(b)
		c.digest[i] = byte(carry)
		carry >>= 8
	}
}

// Step is a part of a copy.
type Step string

// Steps, in their order.
const (
	StepRead   Step = "read the source"
	StepWrite  Step = "write the target"
	StepVerify Step = "verify the target"
)

// Options of Copy. Kinds is required.
type Options struct {
	Kinds []*schema.Kind
	// Progress, if set, is called now and then with the bytes of entities so far, and
	// of all; 0: not known.
	Progress func(step Step, done, all int64)
}

// progressEvery is how many items come between two calls of Options.Progress.
const progressEvery = 500

// Result says what Copy did.
type Result struct {
	Content
	Already bool // the target held the same before
}

// Copy copies everything. It reads the source before, while and the target after
// it writes, and compares. Errors: NotFound: the source is empty;
// FailedPrecondition: it has entities of an unknown kind, it changed meanwhile, or
// the target holds something else; Corrupt: the target is not as it was written.
func Copy(ctx context.Context, from, to Store, o Options) (*Result, error) {
	c := copier{ctx: ctx, o: o, known: map[string]bool{}}
	for _, k := range o.Kinds {
		c.known[k.Name] = true
	}
	want, rev, err := c.content(from, StepRead, 0)
	if err != nil {
		return nil, errs.Wrap(err, "source")
	}
	if want.Entities()+want.Leases == 0 {
		return nil, errs.New(errs.NotFound, "the source is empty")
	}
	for kind := range want.Kinds {
		if !c.known[kind] {
			return nil, errs.New(errs.FailedPrecondition, "the source has entities of kind %s, which this program does not know", kind).
				WithHint("use the version of runtime that wrote them, or a newer one")
		}
	}
	have, _, err := c.content(to, StepVerify, want.Bytes)
	if err != nil {
		return nil, errs.Wrap(err, "target")
	}
	if have.equal(want) {
		return &Result{*want, true}, nil
	}
	err = to.Write(ctx, func(put func(Item) error) (schema.Revision, error) {
		now, at, err := c.read(from, StepWrite, want.Bytes, put)
		if err != nil {
			return 0, err
		}
		if at != rev || !now.equal(want) {
			return 0, errs.New(errs.FailedPrecondition, "the source changed meanwhile").WithHint("stop every server that uses it")
		}
		// The next change of every entity keeps its previous state in the log.
		return rev + eval.PrevMargin, nil
	})
	if err != nil {
		return nil, err
	}
	if have, _, err = c.content(to, StepVerify, want.Bytes); err != nil {
		return nil, errs.Wrap(err, "verify the target")
	}
	if !have.equal(want) {
		return nil, errs.New(errs.Corrupt, "the target has %d entities and %d leases with digest %.12s, the source %d and %d with %.12s",
			have.Entities(), have.Leases, have.Digest(), want.Entities(), want.Leases, want.Digest()).WithHint("remove what the target has; the source is as it was")
	}
	return &Result{*want, false}, nil
}

type copier struct {
	ctx   context.Context
	o     Options
	known map[string]bool
}

func (c *copier) content(s Store, step Step, all int64) (*Content, schema.Revision, error) {
	return c.read(s, step, all, func(Item) error { return nil })
}

// read reads a store and calls f for each item.
func (c *copier) read(s Store, step Step, all int64, f func(Item) error) (*Content, schema.Revision, error) {
	content, n := &Content{}, 0
	rev, err := s.Read(c.ctx, func(it Item) error {
		if err := c.ctx.Err(); err != nil {
			return eval.ContextError(c.ctx, string(step))
		}
		content.add(it)
		if n++; n%progressEvery == 0 && c.o.Progress != nil {
			c.o.Progress(step, content.Bytes, all)
		}
		return f(it)
	})
	return content, rev, err
}
