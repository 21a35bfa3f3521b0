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
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// Bounds of one page.
const (
	maxPage      = 10_000
	maxPageBytes = 16 << 20
)

// cursor is the format of Page.Cursor: where the listing stands, and a hash of
// what it selects.
type cursor struct {
	Epoch    string `cbor:"1,keyasint"`
	Revision int64  `cbor:"2,keyasint"`
	After    string `cbor:"3,keyasint"`
	Query    uint64 `cbor:"4,keyasint"`
}

// List implements entity.Reader. Later pages show the store as it was at the
// revision of the first: what changed since is put back from the log.
func (s *Store) List(ctx context.Context, q entity.Query) (entity.Page, error) {
	kind, err := s.kind(q.Kind)
	if err != nil {
		return entity.Page{}, err
	}
	if err := checkQuery(&q); err != nil {
		return entity.Page{}, err
	}
	l := &listing{s: s, q: &q, kind: kind, limit: maxPage, hash: queryHash(&q)}
	if q.Limit > 0 {
		l.limit = min(q.Limit, maxPage)
	}
	if q.Cursor != "" {
		b, err := base64.RawURLEncoding.DecodeString(q.Cursor)
		if err != nil || decMode.Unmarshal(b, &l.from) != nil || l.from.Query != l.hash {
			return entity.Page{}, errs.New(errs.InvalidArgument, "this cursor is not of this query")
		}
	}
	return retryRead(ctx, s, "list "+q.Kind, l.page)
}

func checkQuery(q *entity.Query) error {
	if q.Limit < 0 {
		return errs.New(errs.InvalidArgument, "a negative limit")
	}
	if !storable(string(q.Project)) {
		return errs.New(errs.InvalidArgument, "%q is not the id of a project", q.Project)
	}
	for name := range q.Labels {
		if name == "" || !storable(name) {
			return errs.New(errs.InvalidArgument, "%q is not a label", name)
		}
	}
	for _, m := range q.Index {
		if m.Op < entity.IndexEq || m.Op > entity.IndexRange || !storable(m.Attr) {
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
	return h.Sum64()
}

// listing is one page in the making.
type listing struct {
	s     *Store
	q     *entity.Query
	kind  *schema.Kind
	limit int
	hash  uint64
	from  cursor
}

// page reads everything in one snapshot and one round trip.
func (l *listing) page(ctx context.Context) (entity.Page, error) {
	first := l.q.Cursor == ""
	var now, floor int64
	var epoch, epochAfter string
	var current, past []schema.Record
	full := false // there is more than what current holds
	b := &pgx.Batch{}
	b.Queue(`begin isolation level repeatable read read only`)
	b.Queue(`select revision, epoch from store`).QueryRow(func(r pgx.Row) error { return r.Scan(&now, &epoch) })
	sql, args := l.sql(first)
	b.Queue(sql, args...).Query(func(rows pgx.Rows) error {
		size := 0
		for rows.Next() {
			var raw []byte
			if err := rows.Scan(&raw); err != nil {
				return err
			}
			if full = len(current) == l.limit || size > maxPageBytes; full {
				continue // read to the end; there is one more row at most, or the page is too big
			}
			size += len(raw)
			rec, err := decodeRecord(raw)
			if err != nil {
				return err
			}
			current = append(current, *rec)
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
			return entity.Page{}, compacted(token, "the store began a new epoch")
		}
		if l.from.Revision < floor {
			return entity.Page{}, compacted(token, "the log was compacted")
		}
	}
	// Where current is cut off, what is put back counts only up to there.
	var last schema.ID
	if full {
		last = current[len(current)-1].ID
	}
	recs, err := l.filter(current)
	if err != nil {
		return entity.Page{}, err
	}
	if len(past) > 0 {
		if past, err = l.filter(past); err != nil {
			return entity.Page{}, err
		}
		for _, r := range past {
			if last == "" || r.ID <= last {
				recs = append(recs, r)
			}
		}
		slices.SortFunc(recs, func(a, b schema.Record) int { return cmp.Compare(a.ID, b.ID) })
		if len(recs) > l.limit {
			recs, full = recs[:l.limit], true
			last = recs[l.limit-1].ID
		}
	}
	page := entity.Page{Records: recs, Token: token}
	if full {
		c, err := encMode.Marshal(&cursor{token.Epoch, int64(token.Revision), string(last), l.hash})
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
	sb.WriteString(`select e.record from entity e where e.kind = $1`)
	if !first {
		// Versions younger than the listing are not of it; what they replaced
		// comes from the log.
		sb.WriteString(` and e.id > ` + arg(l.from.After) + ` and e.revision <= ` + arg(l.from.Revision))
	}
	if l.q.Project != "" {
		sb.WriteString(` and e.project = ` + arg(string(l.q.Project)))
	}
	if l.q.Name != "" {
		sb.WriteString(` and e.id in (select u.id from entity_unique u where u.kind = $1 and u.attr = '` + attrName + `' and u.value = ` + arg([]byte(l.q.Name)))
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
	sb.WriteString(` order by e.id limit ` + arg(l.limit+1))
	return sb.String(), args
}

// sqlPast selects, for every entity of a kind that changed after a revision,
// the state it had then: that before its first change since. Of a deletion the
// log has it as the record; of an update it is prev, or an entry of its own
// that is close enough to be there still.
const sqlPast = `select case
		when c.type = 2 then c.record
		when c.prev is not null then c.prev
		else (select p.record from log p where p.revision = c.prev_revision and p.kind = c.kind and p.id = c.id)
	end
	from (select distinct on (l.id) l.kind, l.id, l.type, l.prev_revision, l.record, l.prev from log l
		where l.revision > $1 and l.kind = $2 and l.id > $3 order by l.id, l.revision, l.seq) c
	where c.prev_revision > 0`

func (l *listing) queuePast(b *pgx.Batch, out *[]schema.Record) {
	b.Queue(sqlPast, l.from.Revision, l.q.Kind, l.from.After).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			var raw []byte
			if err := rows.Scan(&raw); err != nil {
				return err
			}
			if raw == nil {
				// Gone with its partition: the floor, which is asked for later,
				// has passed the listing.
				continue
			}
			rec, err := decodeRecord(raw)
			if err != nil {
				return err
			}
			*out = append(*out, *rec)
		}
		return rows.Err()
	})
}

// filter keeps what the query selects. Rows that came through an index are
// checked too, since another version of the program may have left stale
// entries in it.
func (l *listing) filter(recs []schema.Record) ([]schema.Record, error) {
	if len(l.q.Index) == 0 {
		return slices.DeleteFunc(recs, func(r schema.Record) bool { return !matchesMeta(&r, l.q) }), nil
	}
	var bad error
	recs = slices.DeleteFunc(recs, func(r schema.Record) bool {
		if !matchesMeta(&r, l.q) {
			return true
		}
		ext, err := extract(l.kind, &r)
		if err != nil {
			bad = errs.New(errs.Corrupt, "stored %s %s is not valid: %w", r.Kind, r.ID, err)
			return true
		}
		return slices.ContainsFunc(l.q.Index, func(m entity.IndexMatch) bool { return !matchesIndex(ext, m) })
	})
	return recs, bad
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
