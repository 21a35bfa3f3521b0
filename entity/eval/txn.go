package eval

import (
	"crypto/sha256"
	"encoding/binary"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"unicode/utf8"

	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// Limits of one transaction.
const (
	maxOps         = 1000
	maxRecordBytes = 1 << 20
	maxTxnBytes    = 8 << 20
	maxIndexValue  = 1024 // PostgreSQL's index rows end at 2.7 kB
	maxName        = 253
	maxLabels      = 64
	maxRequestID   = 128
)

// AttrName is the attribute of names in the table of unique values; labels are
// indexed as entity.LabelPrefix and their name.
const AttrName = "meta.name"

var ValidID = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,63}$`)

// UniqueKey names a value that only one entity may have. scope is the project,
// or empty.
type UniqueKey struct{ Kind, Attr, Value, Scope string }

// A txn goes through these states; the goroutine that moves it out of queued
// owns it.
const (
	queued int32 = iota
	taken
	abandoned
)

// Txn is a client's transaction, or one that ends a lease, in the queue.
type Txn struct {
	Req   entity.TxnRequest
	kinds []*schema.Kind      // kind of each op
	exts  []*schema.Extracted // values extracted from each op's record as submitted; nil if not known
	bytes int
	hash  []byte // hash of the request, if it has an id
	// guarded: a condition on a revision that the transaction itself changes
	// keeps it from being accepted twice.
	guarded bool

	// EndLease deletes the lease and its entities; if onlyLapsed, only if its
	// time is over.
	EndLease   schema.LeaseID
	OnlyLapsed bool

	// chunked: it may be applied in parts, deletions of referrers first.
	chunked bool

	state atomic.Int32
	done  chan struct{} // closed after res and err are set
	res   entity.TxnResult
	err   error
}

// Finish answers the client. Each transaction that was collected is finished once.
func (t *Txn) Finish(res entity.TxnResult, err error) {
	t.res, t.err = res, err
	close(t.done)
}

// Prepare checks the conditions that need no state.
func (e *Evaluator) Prepare(req entity.TxnRequest) (*Txn, error) {
	switch {
	case len(req.Ops) == 0:
		return nil, errs.New(errs.InvalidArgument, "a transaction without operations")
	case len(req.Ops) > maxOps:
		return nil, errs.New(errs.InvalidArgument, "a transaction of %d operations; at most %d are allowed", len(req.Ops), maxOps)
	case len(req.RequestID) > maxRequestID || !Storable(req.RequestID):
		return nil, errs.New(errs.InvalidArgument, "a request id is at most %d bytes of text", maxRequestID)
	}
	t := &Txn{Req: req, kinds: make([]*schema.Kind, len(req.Ops)), exts: make([]*schema.Extracted, len(req.Ops))}
	seen := make(map[Key]entity.OpType, len(req.Ops))
	for i := range req.Ops {
		op := &req.Ops[i]
		k := KeyOf(&op.Record)
		kind, err := e.Kind(op.Record.Kind)
		if err != nil {
			return nil, err
		}
		if !ValidID.MatchString(k.ID) || !strings.HasPrefix(k.ID, kind.Prefix+"-") {
			return nil, about(errs.New(errs.InvalidArgument, "%q is not an id of a %s", k.ID, kind.Name), k).
				WithHint("ids are %s- and up to %d of a-z, 0-9 and -", kind.Prefix, 63-len(kind.Prefix))
		}
		switch prev, twice := seen[k]; {
		case !twice:
			seen[k] = op.Type
		case prev == entity.OpUpdateSpec && op.Type == entity.OpUpdateStatus, prev == entity.OpUpdateStatus && op.Type == entity.OpUpdateSpec:
			seen[k] = 0 // no third time
		case prev == entity.OpAdd && op.Type == entity.OpAdd:
		default:
			return nil, about(errs.New(errs.InvalidArgument, "%s %s appears twice in one transaction", k.Kind, k.ID), k)
		}
		t.kinds[i] = kind
		if err := t.prepareOp(i, k); err != nil {
			return nil, err
		}
	}
	if t.bytes > maxTxnBytes {
		return nil, errs.New(errs.InvalidArgument, "a transaction of %d bytes; at most %d are allowed", t.bytes, maxTxnBytes)
	}
	if req.RequestID != "" {
		t.hash = hashOps(req.Ops)
	}
	return t, nil
}

// hashOps returns a hash of the fields that ops write, whatever else their
// records hold: a repeated transaction may have come through another client.
func hashOps(ops []entity.Op) []byte {
	h := sha256.New()
	var buf []byte
	text := func(parts ...string) {
		for _, s := range parts {
			buf = binary.AppendUvarint(buf, uint64(len(s)))
			buf = append(buf, s...)
		}
	}
	for i := range ops {
		op := &ops[i]
		r := &op.Record
		buf = append(buf[:0], byte(op.Type))
		buf = binary.AppendVarint(buf, int64(op.If))
		text(r.Kind, string(r.ID), string(r.Project), r.Name, string(r.Lease))
		buf = binary.AppendUvarint(buf, uint64(len(r.Labels)))
		for _, name := range slices.Sorted(maps.Keys(r.Labels)) {
			text(name, r.Labels[name])
		}
		text(string(r.Spec), string(r.Status))
		if a := op.Add; a != nil {
			text(a.Attr)
			buf = binary.AppendVarint(buf, a.Delta)
			for _, bound := range []*int64{a.Min, a.Max} {
				if bound != nil {
					buf = binary.AppendVarint(append(buf, 1), *bound)
				} else {
					buf = append(buf, 0)
				}
			}
		}
		h.Write(buf)
	}
	return h.Sum(nil)[:16]
}

func (t *Txn) prepareOp(i int, k Key) error {
	op, kind := &t.Req.Ops[i], t.kinds[i]
	size := len(op.Record.Spec) + len(op.Record.Status)
	if size > maxRecordBytes {
		return about(errs.New(errs.InvalidArgument, "%s %s has %d bytes; at most %d are allowed", k.Kind, k.ID, size, maxRecordBytes), k)
	}
	t.bytes += size
	switch op.Type {
	case entity.OpCreate:
		if owned := kind.Scope == schema.ScopeProject; owned && op.Record.Project == "" {
			return about(errs.New(errs.InvalidArgument, "a %s needs a project", k.Kind), k).With("attr", "meta.project")
		} else if !owned && op.Record.Project != "" {
			return about(errs.New(errs.InvalidArgument, "a %s belongs to no project", k.Kind), k).With("attr", "meta.project")
		} else if owned && !ValidID.MatchString(string(op.Record.Project)) {
			return about(errs.New(errs.InvalidArgument, "%q is not the id of a project", op.Record.Project), k).With("attr", "meta.project")
		}
		if err := checkMeta(&op.Record, k); err != nil {
			return err
		}
		ext, err := Extract(kind, &op.Record)
		if err != nil {
			return err
		}
		t.exts[i] = ext
	case entity.OpUpdateSpec:
		t.guarded = true
		if err := checkMeta(&op.Record, k); err != nil {
			return err
		}
		fallthrough
	case entity.OpUpdateStatus:
		t.guarded = true
		// The half that is not written may be missing or old here; the values
		// found now count only if it turns out to be current.
		if len(op.Record.Spec) > 0 && len(op.Record.Status) > 0 {
			if ext, err := Extract(kind, &op.Record); err == nil {
				t.exts[i] = ext
			}
		}
	case entity.OpDelete:
		t.guarded = true
	case entity.OpCheck:
	case entity.OpAdd:
		return checkAddition(op, kind, k)
	default:
		return about(errs.New(errs.InvalidArgument, "unknown operation %d", op.Type), k)
	}
	return nil
}

func checkAddition(op *entity.Op, kind *schema.Kind, k Key) error {
	if op.Add == nil || op.If != 0 {
		return about(errs.New(errs.InvalidArgument, "an addition to %s %s needs what to add, and no revision", k.Kind, k.ID), k)
	}
	a := kind.Attr(op.Add.Attr)
	switch {
	case a == nil:
		return about(errs.New(errs.InvalidArgument, "%s has no attribute %q", k.Kind, op.Add.Attr), k).With("attr", op.Add.Attr)
	case a.Type != "int":
		return about(errs.New(errs.InvalidArgument, "%s of %s is of type %s; only to an int can be added", a.Path, k.Kind, a.Type), k).With("attr", a.Path)
	}
	return nil
}

func checkMeta(r *schema.Record, k Key) error {
	if len(r.Name) > maxName {
		return about(errs.New(errs.InvalidArgument, "a name of %d bytes; at most %d are allowed", len(r.Name), maxName), k).With("attr", AttrName)
	}
	if len(r.Labels) > maxLabels {
		return about(errs.New(errs.InvalidArgument, "%d labels; at most %d are allowed", len(r.Labels), maxLabels), k).With("attr", "meta.labels")
	}
	for name, v := range r.Labels {
		if name == "" || len(name) > maxName || len(v) > maxName {
			return about(errs.New(errs.InvalidArgument, "label %q is empty or longer than %d bytes", name, maxName), k).With("attr", "meta.labels")
		}
		if !Storable(name) {
			return about(errs.New(errs.InvalidArgument, "label %q is not text", name), k).With("attr", "meta.labels")
		}
	}
	if r.Lease != "" && !ValidID.MatchString(string(r.Lease)) {
		return about(errs.New(errs.InvalidArgument, "%q is not the id of a lease", r.Lease), k).With("attr", "meta.lease")
	}
	return nil
}

// Extract validates r and returns its indexed and enforced values, with names
// and labels.
func Extract(kind *schema.Kind, r *schema.Record) (*schema.Extracted, error) {
	ext, err := kind.Extract(r)
	if err != nil {
		var e *errs.Error
		if c := errs.ClassOf(err); c != errs.InvalidArgument {
			e = errs.New(errs.InvalidArgument, "%s %s: %w", r.Kind, r.ID, err)
		} else {
			return nil, err
		}
		return nil, about(e, KeyOf(r))
	}
	for _, x := range ext.Index {
		if len(x.Value) > maxIndexValue {
			return nil, tooLong(r, x.Attr, len(x.Value))
		}
	}
	for _, x := range ext.Unique {
		if len(x.Value) > maxIndexValue {
			return nil, tooLong(r, x.Attr, len(x.Value))
		}
	}
	// The slices belong to the kind: do not append in place.
	if len(r.Labels) > 0 {
		ix := make([]schema.IndexEntry, len(ext.Index), len(ext.Index)+len(r.Labels))
		copy(ix, ext.Index)
		for name, v := range r.Labels {
			ix = append(ix, schema.IndexEntry{Attr: entity.LabelPrefix + name, Value: []byte(v)})
		}
		ext.Index = ix
	}
	return &ext, nil
}

// Storable reports whether PostgreSQL can hold s as text.
func Storable(s string) bool { return utf8.ValidString(s) && !strings.ContainsRune(s, 0) }

func tooLong(r *schema.Record, attr string, n int) error {
	return about(errs.New(errs.InvalidArgument, "%s of %s %s is indexed and has %d bytes; at most %d are allowed", attr, r.Kind, r.ID, n, maxIndexValue), KeyOf(r)).
		With("attr", attr)
}

// uniques returns the unique values of a version, its name included.
func uniques(r *schema.Record, ext *schema.Extracted) []UniqueKey {
	out := make([]UniqueKey, 0, len(ext.Unique)+1)
	if r.Name != "" {
		out = append(out, UniqueKey{r.Kind, AttrName, r.Name, string(r.Project)})
	}
	for _, u := range ext.Unique {
		scope := string(r.Project)
		if u.Global {
			scope = ""
		}
		out = append(out, UniqueKey{r.Kind, u.Attr, string(u.Value), scope})
	}
	return out
}

// Kind returns a kind by its name. InvalidArgument: the store does not have it.
func (e *Evaluator) Kind(name string) (*schema.Kind, error) {
	k, ok := e.Kinds[name]
	if !ok {
		return nil, errs.New(errs.InvalidArgument, "unknown kind %q", name).With("kind", name)
	}
	return k, nil
}
