package metrics

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"strconv"
	"time"

	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/metric"
	"miren.dev/runtime/domain/apps"
	"miren.dev/runtime/domain/nodes"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/metricstore"
)

const (
	defaultTime   = time.Hour
	defaultPoints = 240
	// windowSamples is the number of samples over which a rate is at least taken.
	windowSamples = 4
)

// Service answers queries. It is safe for concurrent use.
type Service struct {
	Store    *metricstore.Store // nil: no history is kept
	Err      error              // why Store is nil; nil: the configuration says so
	Entities entity.Reader
	Apps     *apps.Service
	Interval time.Duration // between samples
	Now      func() time.Time
}

// Range says for which times values are wanted; zero fields have their defaults.
type Range struct {
	From, To time.Time
	Step     time.Duration
}

// App returns what the services of an app use and serve. service "": all.
func (s *Service) App(ctx context.Context, project, name, service string, r Range) (*metric.Response, error) {
	a, err := s.Apps.Find(ctx, project, name)
	if err != nil {
		return nil, err
	}
	match := "app=" + strconv.Quote(string(a.ID))
	if service != "" {
		match += ",service=" + strconv.Quote(service)
	}
	q, err := s.query(r)
	if err != nil {
		return nil, err
	}
	q.usage(ctx, match, "service")
	q.gauge(ctx, "sandboxes", "count", fmt.Sprintf("count by (service) (%s{%s})", sandboxMemory, match))
	q.rate(ctx, "requests", "requests/s", requests, match, "service,code")
	for _, quantile := range []struct {
		label string
		value float64
	}{{"p50", 0.5}, {"p95", 0.95}, {"p99", 0.99}} {
		q.add(ctx, "latency", "seconds", quantile.label,
			fmt.Sprintf("histogram_quantile(%g, sum by (service,le) (rate(%s{%s}[%s])))", quantile.value, requestSeconds, match, span(q.window)))
	}
	q.gauge(ctx, "in_flight", "count", fmt.Sprintf("sum by (service) (%s{%s})", requestsInFlight, match))
	return q.response()
}

// Sandbox returns what a sandbox used.
func (s *Service) Sandbox(ctx context.Context, sid id.Sandbox, r Range) (*metric.Response, error) {
	q, err := s.query(r)
	if err != nil {
		return nil, err
	}
	q.usage(ctx, "sandbox="+strconv.Quote(string(sid)), "")
	return q.response()
}

// Node returns what a node uses, and the sandboxes on it. Of a runner whose machine was
// not read there is only what its sandboxes use.
func (s *Service) Node(ctx context.Context, name string, r Range) (*metric.Response, error) {
	n, err := nodes.Find(ctx, s.Entities, name)
	if err != nil {
		return nil, err
	}
	q, err := s.query(r)
	if err != nil {
		return nil, err
	}
	match := "node=" + strconv.Quote(string(n.ID))
	q.rate(ctx, "cpu", "cores", nodeCPU, match, "")
	if n.Spec.Runner && len(q.out.Series) == 0 {
		q.usage(ctx, match, "")
	} else {
		q.gauge(ctx, "memory", "bytes", fmt.Sprintf("sum (%s{%s})", nodeMemory, match))
		q.gauge(ctx, "processes", "count", fmt.Sprintf("sum (%s{%s})", nodeProcesses, match))
		q.rate(ctx, "network_in", "bytes/s", nodeReceived, match, "")
		q.rate(ctx, "network_out", "bytes/s", nodeSent, match, "")
		q.gauge(ctx, "disk_used", "bytes", fmt.Sprintf("sum (%s{%s})", nodeDisk, match))
	}
	q.gauge(ctx, "sandboxes", "count", fmt.Sprintf("count (%s{%s})", sandboxMemory, match))
	return q.response()
}

// query collects the series of one answer.
type query struct {
	store  *metricstore.Store
	times  metricstore.Range
	window time.Duration // over which a value is taken
	detail time.Duration // between the readings of a window
	out    metric.Response
	err    error // the first one
}

func (s *Service) query(r Range) (*query, error) {
	switch {
	case s.Err != nil:
		return nil, errs.New(errs.Unavailable, "the history of metrics: %w", s.Err)
	case s.Store == nil:
		return nil, errs.New(errs.FailedPrecondition, "the server keeps no history of metrics").WithHint("metrics.max_bytes of its configuration is 0")
	}
	now := time.Now
	if s.Now != nil {
		now = s.Now
	}
	toNow := r.To.IsZero()
	if toNow {
		r.To = now()
	}
	if r.From.IsZero() {
		r.From = r.To.Add(-defaultTime)
	}
	if r.To.Before(r.From) {
		return nil, errs.New(errs.InvalidArgument, "the time ends at %s, before it begins", r.To.UTC().Format(time.RFC3339))
	}
	if r.Step <= 0 {
		n := int64(math.Ceil(float64(r.To.Sub(r.From)) / float64(s.Interval) / defaultPoints))
		r.Step = time.Duration(max(1, n)) * s.Interval
		toNow = true
	}
	r.Step = max(time.Second, r.Step.Truncate(time.Millisecond))
	if toNow {
		// The last value is that of the end: with long steps an app that is new would
		// otherwise have none.
		r.From = r.To.Add(-r.To.Sub(r.From).Truncate(r.Step))
	}
	q := &query{store: s.Store, times: metricstore.Range{From: r.From.UTC(), To: r.To.UTC(), Step: r.Step}}
	if n := q.times.Points(); n > metricstore.MaxPoints {
		return nil, errs.New(errs.InvalidArgument, "%d steps of %s are more than %d", n, r.Step, metricstore.MaxPoints).WithHint("choose a longer step, or a shorter time")
	}
	q.window = max(r.Step, windowSamples*s.Interval)
	q.detail = max(s.Interval, r.Step/20).Truncate(time.Millisecond)
	q.out = metric.Response{From: q.times.From, Step: r.Step, Series: []metric.Series{}}
	return q, nil
}

// usage adds what sandboxes use, by a label.
func (q *query) usage(ctx context.Context, match, by string) {
	q.rate(ctx, "cpu", "cores", sandboxCPU, match, by)
	q.gauge(ctx, "memory", "bytes", fmt.Sprintf("sum by (%s) (%s{%s})", by, sandboxMemory, match))
	q.gauge(ctx, "processes", "count", fmt.Sprintf("sum by (%s) (%s{%s})", by, sandboxProcesses, match))
	q.rate(ctx, "network_in", "bytes/s", sandboxReceived, match, by)
	q.rate(ctx, "network_out", "bytes/s", sandboxSent, match, by)
}

func (q *query) rate(ctx context.Context, name, unit, series, match, by string) {
	q.add(ctx, name, unit, "", fmt.Sprintf("sum by (%s) (rate(%s{%s}[%s]))", by, series, match, span(q.window)))
}

// gauge adds a value; with long steps its mean in each.
func (q *query) gauge(ctx context.Context, name, unit, expression string) {
	if q.times.Step > q.detail {
		expression = fmt.Sprintf("avg_over_time((%s)[%s:%s])", expression, span(q.times.Step), span(q.detail))
	}
	q.add(ctx, name, unit, "", expression)
}

func (q *query) add(ctx context.Context, name, unit, label, expression string) {
	if q.err != nil {
		return
	}
	list, err := q.store.Query(ctx, expression, q.times)
	if err != nil {
		q.err = err
		return
	}
	for _, x := range list {
		if hasValue(x.Values) {
			q.out.Series = append(q.out.Series, metric.Series{
				Metric: name, Unit: unit, Service: x.Labels["service"], Label: cmp.Or(label, x.Labels["code"]), Values: x.Values,
			})
		}
	}
}

// span writes a duration as PromQL has it.
func span(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) + "ms" }

func hasValue(list []float64) bool {
	for _, v := range list {
		if !math.IsNaN(v) {
			return true
		}
	}
	return false
}

func (q *query) response() (*metric.Response, error) {
	if q.err != nil {
		return nil, q.err
	}
	return &q.out, nil
}
