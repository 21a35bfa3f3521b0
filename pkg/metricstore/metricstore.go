// Package metricstore keeps samples of metrics on disk, bounded by bytes, age and
// number of series, and answers PromQL about them.
//
// It is Prometheus's storage (tsdb) and query engine, set up for one machine: an
// hour of samples is in memory, and older ones are in blocks. A sample that was
// appended is in the write-ahead log, so it survives the kill of the process; a
// crash of the machine may lose the last seconds.
package metricstore

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"math"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb"
	"github.com/prometheus/prometheus/tsdb/chunks"

	"miren.dev/runtime/pkg/errs"
)

const (
	blockTime      = time.Hour // that a block spans at least
	walSegment     = 4 << 20   // bytes
	stripes        = 512       // of the table of series; the default is for millions
	writeBuffer    = 64 << 10  // bytes
	defaultSeries  = 50_000
	maxQuerySample = 5_000_000 // samples that a query may have in memory
	queryTime      = 20 * time.Second
	// MaxPoints is the greatest number of points of a range.
	MaxPoints = 2000
)

// Config describes a store.
type Config struct {
	Dir       string        // created if missing; one process at a time may have it
	MaxBytes  int64         // disk that it may use; the oldest blocks are deleted; 0: no bound
	MaxAge    time.Duration // how long samples are kept; 0: 15 days
	MaxSeries int           // series in memory, above which new ones are refused; 0: 50,000
	Lookback  time.Duration // age up to which a sample is the present value of its series; 0: 1 minute
	Logger    *slog.Logger
}

// Sample is a value of a series, which its name and labels identify.
type Sample struct {
	Name   string
	Labels map[string]string
	Value  float64
}

// Range is the times at which a query is answered: From, and each Step after it up to
// To. Steps are whole milliseconds, at most MaxPoints in all.
type Range struct {
	From, To time.Time
	Step     time.Duration
}

// Points returns the number of times of the range.
func (r Range) Points() int { return int(r.To.Sub(r.From)/r.Step) + 1 }

// Series is an answer: a value for each time of the range; NaN: there is none.
type Series struct {
	Labels map[string]string
	Values []float64
}

// Store is safe for concurrent use.
type Store struct {
	db      *tsdb.DB
	engine  *promql.Engine
	refused atomic.Int64
}

var errSeries = errors.New("too many series")

// seriesBound refuses new series while there are too many.
type seriesBound struct {
	max  int
	head atomic.Pointer[tsdb.Head]
}

func (b *seriesBound) PreCreation(labels.Labels) error {
	if h := b.head.Load(); h != nil && h.NumSeries() >= uint64(b.max) {
		return errSeries
	}
	return nil
}

func (*seriesBound) PostCreation(labels.Labels) {}

func (*seriesBound) PostDeletion(map[chunks.HeadSeriesRef]labels.Labels) {}

// Open opens the store of a directory. It repairs what a killed process left.
func Open(c Config) (*Store, error) {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.MaxAge <= 0 {
		c.MaxAge = 15 * 24 * time.Hour
	}
	if c.MaxSeries <= 0 {
		c.MaxSeries = defaultSeries
	}
	if c.Lookback <= 0 {
		c.Lookback = time.Minute
	}
	bound := &seriesBound{max: c.MaxSeries}
	o := tsdb.DefaultOptions()
	o.RetentionDuration = c.MaxAge.Milliseconds()
	o.MaxBytes = c.MaxBytes
	o.MinBlockDuration = blockTime.Milliseconds()
	o.MaxBlockDuration = max(blockTime, c.MaxAge/10).Milliseconds()
	o.WALSegmentSize = walSegment
	o.StripeSize = stripes
	o.HeadChunksWriteBufferSize = writeBuffer
	o.NoLockfile = true // the directory belongs to an installation, which is locked
	o.WALReplayConcurrency = 1
	o.SeriesLifecycleCallback = bound
	// The storage makes files that all users may read.
	err := os.MkdirAll(c.Dir, 0o700)
	if err == nil {
		err = os.Chmod(c.Dir, 0o700)
	}
	if err != nil {
		return nil, errs.New(errs.Unavailable, "directory of the history of metrics: %w", err)
	}
	db, err := tsdb.Open(c.Dir, c.Logger, nil, o, nil)
	if err != nil {
		return nil, errs.New(errs.Unavailable, "open the history of metrics: %w", err)
	}
	bound.head.Store(db.Head())
	return &Store{db: db, engine: promql.NewEngine(promql.EngineOpts{
		MaxSamples: maxQuerySample, Timeout: queryTime, LookbackDelta: c.Lookback, Logger: c.Logger,
	})}, nil
}

// Close ends the use of the store.
func (s *Store) Close() error {
	if err := errors.Join(s.engine.Close(), s.db.Close()); err != nil {
		return errs.New(errs.Unavailable, "close the history of metrics: %w", err)
	}
	return nil
}

// Append adds samples of one time and returns when a later process would find them.
// A sample that is not later than the last one of its series is left out, and one of
// a new series while there are too many.
func (s *Store) Append(ctx context.Context, at time.Time, samples []Sample) error {
	app := s.db.Appender(ctx)
	t := at.UnixMilli()
	b := labels.NewScratchBuilder(8)
	for _, x := range samples {
		b.Reset()
		b.Add(model.MetricNameLabel, x.Name)
		for _, k := range slices.Sorted(maps.Keys(x.Labels)) {
			if v := x.Labels[k]; v != "" {
				b.Add(k, v)
			}
		}
		b.Sort()
		_, err := app.Append(0, b.Labels(), t, x.Value)
		switch {
		case err == nil, errors.Is(err, storage.ErrOutOfOrderSample), errors.Is(err, storage.ErrDuplicateSampleForTimestamp),
			errors.Is(err, storage.ErrOutOfBounds), errors.Is(err, storage.ErrTooOldSample):
		case errors.Is(err, errSeries):
			s.refused.Add(1)
		default:
			return errs.New(errs.Unavailable, "append samples: %w", errors.Join(err, app.Rollback()))
		}
	}
	if err := app.Commit(); err != nil {
		return errs.New(errs.Unavailable, "append samples: %w", err)
	}
	return nil
}

// Refused returns how many samples were refused because there were too many series.
func (s *Store) Refused() int64 { return s.refused.Load() }

// InMemory returns the number of series in memory.
func (s *Store) InMemory() int { return int(s.db.Head().NumSeries()) }

// Query answers a PromQL query for the times of a range, in the order of the labels.
func (s *Store) Query(ctx context.Context, query string, r Range) ([]Series, error) {
	if r.Step < time.Millisecond || r.To.Before(r.From) || r.Points() > MaxPoints {
		return nil, errs.New(errs.InvalidArgument, "a range of %s in steps of %s has not between 1 and %d points", r.To.Sub(r.From), r.Step, MaxPoints).
			WithHint("choose a longer step")
	}
	q, err := s.engine.NewRangeQuery(ctx, s.db, nil, query, r.From, r.To, r.Step)
	if err != nil {
		return nil, errs.New(errs.InvalidArgument, "query metrics: %w", err)
	}
	defer q.Close()
	res := q.Exec(ctx)
	if res.Err != nil {
		if ctx.Err() != nil {
			return nil, errs.Wrap(ctx.Err(), "query metrics")
		}
		return nil, errs.New(errs.Unavailable, "query metrics: %w", res.Err)
	}
	m, err := res.Matrix()
	if err != nil {
		return nil, errs.New(errs.Internal, "query metrics: %w", err)
	}
	slices.SortFunc(m, func(a, b promql.Series) int { return labels.Compare(a.Metric, b.Metric) })
	out := make([]Series, len(m))
	for i, x := range m {
		out[i] = Series{Labels: x.Metric.Map(), Values: slices.Repeat([]float64{math.NaN()}, r.Points())}
		for _, p := range x.Floats {
			out[i].Values[(p.T-r.From.UnixMilli())/r.Step.Milliseconds()] = p.F
		}
	}
	return out, nil
}
