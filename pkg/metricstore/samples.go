package metricstore

import (
	"context"
	"slices"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/tsdb/chunkenc"

	"miren.dev/runtime/pkg/errs"
)

// Moment is the samples of one time.
type Moment struct {
	At      time.Time
	Samples []Sample // their labels are shared; do not change them
}

// Bounds returns the times of the oldest sample and of the newest. ok is false if there
// is none.
func (s *Store) Bounds() (oldest, newest time.Time, ok bool) {
	head := s.db.Head()
	from, to := head.MinTime(), head.MaxTime()
	for _, b := range s.db.Blocks() {
		m := b.Meta() // its end is exclusive
		from, to = min(from, m.MinTime), max(to, m.MaxTime-1)
	}
	return time.UnixMilli(from), time.UnixMilli(to), from <= to
}

// Samples returns the samples that are later than one time and not later than another,
// the oldest first.
func (s *Store) Samples(ctx context.Context, after, upTo time.Time) ([]Moment, error) {
	q, err := s.db.Querier(after.UnixMilli()+1, upTo.UnixMilli())
	if err != nil {
		return nil, errs.New(errs.Unavailable, "read samples: %w", err)
	}
	defer q.Close()
	byTime := map[int64]*Moment{}
	set := q.Select(ctx, false, nil, labels.MustNewMatcher(labels.MatchRegexp, model.MetricNameLabel, ".+"))
	var it chunkenc.Iterator
	for set.Next() {
		series := set.At()
		all := series.Labels().Map()
		name := all[model.MetricNameLabel]
		delete(all, model.MetricNameLabel)
		for it = series.Iterator(it); it.Next() == chunkenc.ValFloat; {
			t, v := it.At()
			m := byTime[t]
			if m == nil {
				m = &Moment{At: time.UnixMilli(t)}
				byTime[t] = m
			}
			m.Samples = append(m.Samples, Sample{Name: name, Labels: all, Value: v})
		}
		if err := it.Err(); err != nil {
			return nil, errs.New(errs.Unavailable, "read samples: %w", err)
		}
	}
	if err := set.Err(); err != nil {
		return nil, errs.New(errs.Unavailable, "read samples: %w", err)
	}
	out := make([]Moment, 0, len(byTime))
	for _, m := range byTime {
		out = append(out, *m)
	}
	slices.SortFunc(out, func(a, b Moment) int { return a.At.Compare(b.At) })
	return out, nil
}
