// Package listing makes pages of the lists of an entity store, whatever the
// database is: it imports none.
//
// Every page of a listing shows the store at the revision of the first. The
// store reads the current versions that are not younger, and the past versions of
// the entities that changed since, from its log; Rows merges them.
package listing

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strings"

	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/eval"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// Bounds of one page.
const (
	maxPage      = 10_000
	maxPageBytes = 16 << 20
)

// cursor is the format of Page.Cursor: the position of the listing, and a hash
// of its query.
type cursor struct {
	Epoch    string `cbor:"1,keyasint"`
	Revision int64  `cbor:"2,keyasint"`
	After    string `cbor:"3,keyasint"` // id
	Query    uint64 `cbor:"4,keyasint"`
	Value    []byte `cbor:"5,keyasint,omitempty"` // value in the index that orders
}

// New checks a query. param is the format of a numbered parameter of the
// database: "$%d" or "?%d". Errors: InvalidArgument.
func New(e *eval.Evaluator, q entity.Query, param string) (*Listing, error) {
	kind, err := e.Kind(q.Kind)
	if err != nil {
		return nil, err
	}
	if err := checkQuery(&q); err != nil {
		return nil, err
	}
	l := &Listing{q: &q, kind: kind, param: param, limit: maxPage, hash: queryHash(&q)}
	if err := l.order(); err != nil {
		return nil, err
	}
	if q.Limit > 0 {
		l.limit = min(q.Limit, maxPage)
	}
	if q.Cursor != "" {
		b, err := base64.RawURLEncoding.DecodeString(q.Cursor)
		if err != nil || eval.DecMode.Unmarshal(b, &l.from) != nil || l.from.Query != l.hash {
			return nil, errs.New(errs.InvalidArgument, "this cursor is not of this query")
		}
	}
	return l, nil
}

// First reports whether the page is the first of its listing. It shows the
// current state, so no past one is read.
func (l *Listing) First() bool { return l.q.Cursor == "" }

func checkQuery(q *entity.Query) error {
	if q.Limit < 0 {
		return errs.New(errs.InvalidArgument, "a negative limit")
	}
	if !eval.Storable(string(q.Project)) {
		return errs.New(errs.InvalidArgument, "%q is not the id of a project", q.Project)
	}
	for name := range q.Labels {
		if name == "" || !eval.Storable(name) {
			return errs.New(errs.InvalidArgument, "%q is not a label", name)
		}
	}
	for _, m := range q.Index {
		if m.Op < entity.IndexEq || m.Op > entity.IndexRange || !eval.Storable(m.Attr) {
			return errs.New(errs.InvalidArgument, "comparison %d of attribute %q is unknown", m.Op, m.Attr)
		}
	}
	return nil
}

func queryHash(q *entity.Query) uint64 {
	h := fnv.New64a()
	fmt.Fprintf(h, "%q %q %q", q.Kind, q.Project, q.Name)
	for _, k := range slices.Sorted(maps.Keys(q.Labels)) {
		fmt.Fprintf(h, " %q=%q", k, q.Labels[k])
	}
	for _, m := range q.Index {
		fmt.Fprintf(h, " %q %d %x %x %v", m.Attr, m.Op, m.Value, m.Upper, m.Upper == nil)
	}
	if o := q.Order; o != nil {
		fmt.Fprintf(h, " %q", o.Index)
		for _, v := range append(slices.Clone(o.Equal), o.Lower, o.Upper) {
			fmt.Fprintf(h, " %x %v", v, v == nil)
		}
	}
	return h.Sum64()
}

// Listing is a query for one page.
type Listing struct {
	q     *entity.Query
	param string
	kind  *schema.Kind
	limit int
	hash  uint64
	from  cursor

	// The index that orders, nil if ids do, and its selected values: at least
	// lo and below hi, if hi is not nil.
	by     *schema.Index
	lo, hi []byte
}

// order resolves Query.Order.
func (l *Listing) order() error {
	o := l.q.Order
	if o == nil {
		return nil
	}
	if l.by = l.kind.Composite(o.Index); l.by == nil {
		return errs.New(errs.InvalidArgument, "%s has no index %q", l.kind.Name, o.Index)
	}
	parts := len(l.by.Parts)
	if bounded := o.Lower != nil || o.Upper != nil; len(o.Equal) > parts || bounded && len(o.Equal) == parts {
		return errs.New(errs.InvalidArgument, "the index %s of %s has %d attributes, fewer than the query has values", o.Index, l.kind.Name, parts)
	}
	l.lo, l.hi = l.by.Range(o.Equal, o.Lower, o.Upper)
	return nil
}

// item is a record of a listing with its sort key.
type item struct {
	rec   schema.Record
	value []byte // value in the index that orders; nil if ids do
}

func compareItems(a, b item) int {
	return cmp.Or(bytes.Compare(a.value, b.value), cmp.Compare(a.rec.ID, b.rec.ID))
}

// Rows are the rows that a store reads for one page, all in one snapshot except
// for EpochAfter and Floor.
type Rows struct {
	l             *Listing
	current, past []item
	at            []byte // the value of the last of current in the index that orders
	size          int
	full          bool // there are more rows than current holds

	Epoch    string
	Revision schema.Revision // the newest
	// EpochAfter and Floor are read after the log, in a later snapshot: a floor is
	// published before anything below it is dropped.
	EpochAfter string
	Floor      schema.Revision
}

// Rows returns an empty set of rows.
func (l *Listing) Rows() *Rows { return &Rows{l: l} }

// Add adds a row of SQL: a record and its value in the index that orders. All
// rows are to be added.
func (r *Rows) Add(raw, value []byte) error {
	if r.full = len(r.current) == r.l.limit || r.size > maxPageBytes; r.full {
		return nil // there is at most one more, or the page is too large
	}
	r.size, r.at = r.size+len(raw), value
	rec, err := eval.DecodeRecord(raw)
	if err == nil {
		r.current = append(r.current, item{rec: *rec})
	}
	return err
}

// AddPast adds the state that an entity had at the revision of the listing, if it
// has changed since; nil if it was compacted meanwhile, which Floor will tell.
func (r *Rows) AddPast(raw []byte) error {
	if raw == nil {
		return nil
	}
	rec, err := eval.DecodeRecord(raw)
	if err == nil {
		r.past = append(r.past, item{rec: *rec})
	}
	return err
}

// Past names the past states that a page needs: of the entities of a kind, with
// an id after this one, that have changed since a revision.
func (l *Listing) Past() (since schema.Revision, kind, after string) {
	if after = l.from.After; l.by != nil {
		after = "" // ids do not determine the order
	}
	return schema.Revision(l.from.Revision), l.q.Kind, after
}

// Page makes the page. Errors: Compacted, Corrupt.
func (r *Rows) Page() (entity.Page, error) {
	l, current, past, full := r.l, r.current, r.past, r.full
	token := schema.Token{Epoch: r.Epoch, Revision: r.Revision}
	if !l.First() {
		token = schema.Token{Epoch: l.from.Epoch, Revision: schema.Revision(l.from.Revision)}
		if token.Epoch != r.EpochAfter || token.Epoch != r.Epoch {
			return entity.Page{}, eval.Compacted(token, "the store began a new epoch")
		}
		if token.Revision < r.Floor {
			return entity.Page{}, eval.Compacted(token, "the log was compacted")
		}
	}
	// Where current is cut off, undone changes count only up to there.
	var last *item
	if full {
		it := current[len(current)-1]
		it.value = r.at
		last = &it
	}
	items, err := l.filter(current)
	if err != nil {
		return entity.Page{}, err
	}
	if len(past) > 0 {
		if past, err = l.filter(past); err != nil {
			return entity.Page{}, err
		}
		begin := item{value: l.from.Value, rec: schema.Record{Meta: schema.Meta{ID: schema.ID(l.from.After)}}}
		for _, it := range past {
			if compareItems(it, begin) > 0 && (last == nil || compareItems(it, *last) <= 0) {
				items = append(items, it)
			}
		}
		slices.SortFunc(items, compareItems)
		if len(items) > l.limit {
			items, full = items[:l.limit], true
			last = &items[l.limit-1]
		}
	}
	page := entity.Page{Records: make([]schema.Record, len(items)), Token: token}
	for i := range items {
		page.Records[i] = items[i].rec
	}
	if full {
		c, err := eval.EncMode.Marshal(&cursor{token.Epoch, int64(token.Revision), string(last.rec.ID), l.hash, last.value})
		if err != nil {
			return entity.Page{}, errs.New(errs.Internal, "encode cursor: %w", err)
		}
		page.Cursor = base64.RawURLEncoding.EncodeToString(c)
	}
	return page, nil
}

// SQL selects the current versions, one more than a page has: records, and their
// values in the index that orders.
func (l *Listing) SQL() (string, []any) {
	first := l.First()
	var sb strings.Builder
	var args []any
	arg := func(v any) string {
		args = append(args, v)
		return fmt.Sprintf(l.param, len(args))
	}
	kind := arg(l.q.Kind)
	if l.by == nil {
		sb.WriteString(`select e.record, cast(null as bytea) from entity e where e.kind = ` + kind)
		if !first {
			sb.WriteString(` and e.id > ` + arg(l.from.After))
		}
	} else {
		sb.WriteString(`select e.record, o.value from entity_index o join entity e on e.kind = o.kind and e.id = o.id
			where e.kind = ` + kind + ` and o.kind = ` + kind + ` and o.attr = ` + arg(l.by.Attr()) + ` and o.value >= ` + arg(notNil(l.lo)))
		if l.hi != nil {
			sb.WriteString(` and o.value < ` + arg(l.hi))
		}
		if !first {
			sb.WriteString(` and (o.value, o.id) > (` + arg(notNil(l.from.Value)) + `, ` + arg(l.from.After) + `)`)
		}
	}
	if !first {
		// Versions younger than the listing are not part of it; the versions
		// that they replaced come from the log.
		sb.WriteString(` and e.revision <= ` + arg(l.from.Revision))
	}
	if l.q.Project != "" {
		sb.WriteString(` and e.project = ` + arg(string(l.q.Project)))
	}
	if l.q.Name != "" {
		sb.WriteString(` and e.id in (select u.id from entity_unique u where u.kind = ` + kind + ` and u.attr = '` + eval.AttrName + `' and u.value = ` + arg([]byte(l.q.Name)))
		if l.q.Project != "" {
			sb.WriteString(` and u.scope = ` + arg(string(l.q.Project)))
		}
		sb.WriteString(`)`)
	}
	index := func(attr, cond string) {
		sb.WriteString(` and e.id in (select i.id from entity_index i where i.kind = ` + kind + ` and i.attr = ` + arg(attr) + cond + `)`)
	}
	for _, k := range slices.Sorted(maps.Keys(l.q.Labels)) {
		index(entity.LabelPrefix+k, ` and i.value = `+arg([]byte(l.q.Labels[k])))
	}
	for _, m := range l.q.Index {
		lower, upper := m.Value, m.Upper
		cond := ""
		switch m.Op {
		case entity.IndexEq:
			index(m.Attr, ` and i.value = `+arg(notNil(m.Value)))
			continue
		case entity.IndexPrefix:
			upper = prefixEnd(m.Value)
		}
		if len(lower) > 0 {
			cond = ` and i.value >= ` + arg(lower)
		}
		if upper != nil {
			cond += ` and i.value < ` + arg(upper)
		}
		index(m.Attr, cond)
	}
	if l.by == nil {
		sb.WriteString(` order by e.id limit ` + arg(l.limit+1))
	} else {
		sb.WriteString(` order by o.value, o.id limit ` + arg(l.limit+1))
	}
	return sb.String(), args
}

// filter keeps the records that the query selects, and finds their sort keys.
// It also checks rows that came through an index, since another version of the
// program may have left stale entries in it.
func (l *Listing) filter(items []item) ([]item, error) {
	var bad error
	kept := items[:0]
	for i := range items {
		it := &items[i]
		if !matchesMeta(&it.rec, l.q) {
			continue
		}
		if len(l.q.Index) > 0 || l.by != nil {
			ext, err := eval.Extract(l.kind, &it.rec)
			if err != nil {
				bad = errs.New(errs.Corrupt, "stored %s %s is not valid: %w", it.rec.Kind, it.rec.ID, err)
				continue
			}
			if !l.matches(ext, it) {
				continue
			}
		}
		kept = append(kept, *it)
	}
	return kept, bad
}

// matches reports whether the query selects the record, given its extracted
// values, and sets its sort key.
func (l *Listing) matches(ext *schema.Extracted, it *item) bool {
	if slices.ContainsFunc(l.q.Index, func(m entity.IndexMatch) bool { return !matchesIndex(ext, m) }) {
		return false
	}
	if l.by == nil {
		return true
	}
	i := slices.IndexFunc(ext.Index, func(x schema.IndexEntry) bool { return x.Attr == l.by.Attr() })
	if i < 0 {
		return false
	}
	it.value = ext.Index[i].Value
	return bytes.Compare(it.value, l.lo) >= 0 && (l.hi == nil || bytes.Compare(it.value, l.hi) < 0)
}

func matchesMeta(r *schema.Record, q *entity.Query) bool {
	if q.Project != "" && r.Project != q.Project || q.Name != "" && r.Name != q.Name {
		return false
	}
	for k, v := range q.Labels {
		if have, ok := r.Labels[k]; !ok || have != v {
			return false
		}
	}
	return true
}

func matchesIndex(ext *schema.Extracted, m entity.IndexMatch) bool {
	return slices.ContainsFunc(ext.Index, func(e schema.IndexEntry) bool {
		if e.Attr != m.Attr {
			return false
		}
		switch m.Op {
		case entity.IndexPrefix:
			return bytes.HasPrefix(e.Value, m.Value)
		case entity.IndexRange:
			return bytes.Compare(e.Value, m.Value) >= 0 && (m.Upper == nil || bytes.Compare(e.Value, m.Upper) < 0)
		}
		return bytes.Equal(e.Value, m.Value)
	})
}

// prefixEnd returns the smallest value above every one with the prefix, nil if
// there is none.
func prefixEnd(p []byte) []byte {
	for i := len(p) - 1; i >= 0; i-- {
		if p[i] != 0xff {
			end := bytes.Clone(p[:i+1])
			end[i]++
			return end
		}
	}
	return nil
}

// notNil keeps an empty value from becoming NULL.
func notNil(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}
