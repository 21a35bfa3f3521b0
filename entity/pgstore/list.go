package pgstore

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

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

// List implements entity.Reader. Later pages show the store as it was at the
// revision of the first: changes since then are undone from the log.
func (s *Store) List(ctx context.Context, q entity.Query) (entity.Page, error) {
	kind, err := s.eval.Kind(q.Kind)
	if err != nil {
		return entity.Page{}, err
	}
	if err := checkQuery(&q); err != nil {
		return entity.Page{}, err
	}
	l := &listing{s: s, q: &q, kind: kind, limit: maxPage, hash: queryHash(&q)}
	if err := l.order(); err != nil {
		return entity.Page{}, err
	}
	if q.Limit > 0 {
		l.limit = min(q.Limit, maxPage)
	}
	if q.Cursor != "" {
		b, err := base64.RawURLEncoding.DecodeString(q.Cursor)
		if err != nil || eval.DecMode.Unmarshal(b, &l.from) != nil || l.from.Query != l.hash {
			return entity.Page{}, errs.New(errs.InvalidArgument, "this cursor is not of this query")
		}
	}
	return retryRead(ctx, s, "list "+q.Kind, l.page)
}

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

// listing is one page that is being read.
type listing struct {
	s     *Store
	q     *entity.Query
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
func (l *listing) order() error {
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

// page reads everything in one snapshot and one round trip.
func (l *listing) page(ctx context.Context) (entity.Page, error) {
	first := l.q.Cursor == ""
	var now, floor int64
	var epoch, epochAfter string
	var current, past []item
	var at []byte // the value of the last of current in the index that orders
	full := false // there are more rows than current holds
	b := &pgx.Batch{}
	b.Queue(`begin isolation level repeatable read read only`)
	b.Queue(`select revision, epoch from store`).QueryRow(func(r pgx.Row) error { return r.Scan(&now, &epoch) })
	sql, args := l.sql(first)
	b.Queue(sql, args...).Query(func(rows pgx.Rows) error {
		size := 0
		for rows.Next() {
			var raw, value []byte
			if err := rows.Scan(&raw, &value); err != nil {
				return err
			}
			if full = len(current) == l.limit || size > maxPageBytes; full {
				continue // read all rows; there is at most one more, or the page is too large
			}
			size, at = size+len(raw), value
			rec, err := eval.DecodeRecord(raw)
			if err != nil {
				return err
			}
			current = append(current, item{rec: *rec})
		}
		return rows.Err()
	})
	if !first {
		l.queuePast(b, &past)
	}
	b.Queue(sqlCommit)
	// In a snapshot of its own, after the log was read: see readLogPage.
	b.Queue(`select c.floor, s.epoch from compaction c, store s`).QueryRow(func(r pgx.Row) error { return r.Scan(&floor, &epochAfter) })
	if err := l.s.pool.SendBatch(ctx, b).Close(); err != nil {
		return entity.Page{}, err
	}
	token := schema.Token{Epoch: epoch, Revision: schema.Revision(now)}
	if !first {
		token = schema.Token{Epoch: l.from.Epoch, Revision: schema.Revision(l.from.Revision)}
		if token.Epoch != epochAfter || token.Epoch != epoch {
			return entity.Page{}, eval.Compacted(token, "the store began a new epoch")
		}
		if l.from.Revision < floor {
			return entity.Page{}, eval.Compacted(token, "the log was compacted")
		}
	}
	// Where current is cut off, undone changes count only up to there.
	var last *item
	if full {
		it := current[len(current)-1]
		it.value = at
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

// sql selects the current versions, one more than a page has.
func (l *listing) sql(first bool) (string, []any) {
	var sb strings.Builder
	args := []any{l.q.Kind}
	arg := func(v any) string {
		args = append(args, v)
		return fmt.Sprintf("$%d", len(args))
	}
	if l.by == nil {
		sb.WriteString(`select e.record, null::bytea from entity e where e.kind = $1`)
		if !first {
			sb.WriteString(` and e.id > ` + arg(l.from.After))
		}
	} else {
		sb.WriteString(`select e.record, o.value from entity_index o join entity e on e.kind = o.kind and e.id = o.id
			where e.kind = $1 and o.kind = $1 and o.attr = ` + arg(l.by.Attr()) + ` and o.value >= ` + arg(notNil(l.lo)))
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
		sb.WriteString(` and e.id in (select u.id from entity_unique u where u.kind = $1 and u.attr = '` + eval.AttrName + `' and u.value = ` + arg([]byte(l.q.Name)))
		if l.q.Project != "" {
			sb.WriteString(` and u.scope = ` + arg(string(l.q.Project)))
		}
		sb.WriteString(`)`)
	}
	index := func(attr, cond string) {
		sb.WriteString(` and e.id in (select i.id from entity_index i where i.kind = $1 and i.attr = ` + arg(attr) + cond + `)`)
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

// sqlPast selects, for every entity of a kind that changed after a revision,
// its state at that revision: the state before its first change since. For a
// deletion the log has it as the record; for an update it is prev, or an entry
// of its own that is recent enough to be still there.
const sqlPast = `select case
		when c.type = 2 then c.record
		when c.prev is not null then c.prev
		else (select p.record from log p where p.revision = c.prev_revision and p.kind = c.kind and p.id = c.id)
	end
	from (select distinct on (l.id) l.kind, l.id, l.type, l.prev_revision, l.record, l.prev from log l
		where l.revision > $1 and l.kind = $2 and l.id > $3 order by l.id, l.revision, l.seq) c
	where c.prev_revision > 0`

func (l *listing) queuePast(b *pgx.Batch, out *[]item) {
	after := l.from.After
	if l.by != nil {
		after = "" // ids do not determine the order
	}
	b.Queue(sqlPast, l.from.Revision, l.q.Kind, after).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			var raw []byte
			if err := rows.Scan(&raw); err != nil {
				return err
			}
			if raw == nil {
				// The row was dropped with its partition: the floor, which is
				// read later, has passed the listing.
				continue
			}
			rec, err := eval.DecodeRecord(raw)
			if err != nil {
				return err
			}
			*out = append(*out, item{rec: *rec})
		}
		return rows.Err()
	})
}

// filter keeps the records that the query selects, and finds their sort keys.
// It also checks rows that came through an index, since another version of the
// program may have left stale entries in it.
func (l *listing) filter(items []item) ([]item, error) {
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
func (l *listing) matches(ext *schema.Extracted, it *item) bool {
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
