// Package breaker keeps callers from waiting for something that does not answer:
// a circuit breaker (sony/gobreaker) that also counts calls which take long, and
// a bound of the calls under way.
//
//	closed     calls go through. Failures in a row open it.
//	open       calls are refused at once, for a pause.
//	half-open  one call tries; it closes the breaker, or opens it again.
//
// A failure is an error of class Unavailable, or a call that has not ended after
// Config.Slow: whoever is called may have a patience of its own, which is longer.
// That call goes on. What the caller ends counts as nothing, and any other error
// is an answer.
package breaker

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/sony/gobreaker/v2"

	"miren.dev/runtime/pkg/errs"
)

// Config configures a Breaker. Name and Logger are required.
type Config struct {
	Name     string        // of what is called: a label of the metrics, and in errors
	Failures int           // in a row, which open it; 0: 5
	Slow     time.Duration // after which a call counts as failed; 0: 10 s
	Pause    time.Duration // for which calls are refused before one tries; 0: 1 s
	InFlight int           // most calls under way; 0: 4096
	Logger   *slog.Logger
}

// Breaker is a circuit breaker. A nil one lets every call through. It is safe for
// concurrent use, and a collector of its metrics.
type Breaker struct {
	cfg      Config
	circuit  *gobreaker.TwoStepCircuitBreaker[any]
	slots    chan struct{}
	state    prometheus.GaugeFunc
	inflight prometheus.GaugeFunc
	refused  prometheus.Counter
}

var _ prometheus.Collector = (*Breaker)(nil)

// New returns a closed Breaker.
func New(cfg Config) *Breaker {
	def(&cfg.Failures, 5)
	def(&cfg.Slow, 10*time.Second)
	def(&cfg.Pause, time.Second)
	def(&cfg.InFlight, 4096)
	b := &Breaker{cfg: cfg, slots: make(chan struct{}, cfg.InFlight)}
	b.circuit = gobreaker.NewTwoStepCircuitBreaker[any](gobreaker.Settings{
		Name: cfg.Name, MaxRequests: 1, Timeout: cfg.Pause,
		ReadyToTrip:  func(c gobreaker.Counts) bool { return int(c.ConsecutiveFailures) >= cfg.Failures },
		IsSuccessful: func(err error) bool { return !errs.Is(err, errs.Unavailable) },
		IsExcluded:   func(err error) bool { return errs.Is(err, errs.Canceled) || errs.Is(err, errs.DeadlineExceeded) },
		OnStateChange: func(_ string, from, to gobreaker.State) {
			cfg.Logger.Warn("circuit breaker", "target", cfg.Name, "from", from.String(), "to", to.String())
		},
	})
	labels := prometheus.Labels{"target": cfg.Name}
	b.state = prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "runtime_breaker_state", Help: "State of a circuit breaker: 0 closed, 1 half-open, 2 open.", ConstLabels: labels,
	}, func() float64 { return float64(b.circuit.State()) })
	b.inflight = prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "runtime_breaker_calls_in_flight", Help: "Calls through a circuit breaker that have not ended.", ConstLabels: labels,
	}, func() float64 { return float64(len(b.slots)) })
	b.refused = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "runtime_breaker_refused_total", Help: "Calls that a circuit breaker refused.", ConstLabels: labels,
	})
	return b
}

func def[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

// Describe implements prometheus.Collector.
func (b *Breaker) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(b, ch) }

// Collect implements prometheus.Collector.
func (b *Breaker) Collect(ch chan<- prometheus.Metric) {
	b.state.Collect(ch)
	b.inflight.Collect(ch)
	b.refused.Collect(ch)
}

// Do calls f and returns its error, or Unavailable at once.
func (b *Breaker) Do(ctx context.Context, f func() error) error {
	if b == nil {
		return f()
	}
	select {
	case b.slots <- struct{}{}:
		defer func() { <-b.slots }()
	default:
		b.refused.Inc()
		return errs.New(errs.Unavailable, "%d calls wait for the %s already", b.cfg.InFlight, b.cfg.Name).WithHint("try again in a moment")
	}
	report, err := b.circuit.Allow()
	if err != nil {
		b.refused.Inc()
		return errs.New(errs.Unavailable, "the %s does not answer", b.cfg.Name).WithHint("try again in a moment")
	}
	var once sync.Once
	done := func(err error) { once.Do(func() { report(err) }) }
	slow := time.AfterFunc(b.cfg.Slow, func() { done(errSlow) })
	defer slow.Stop()
	finished := false
	defer func() {
		if !finished { // f panicked
			done(context.Canceled)
		}
	}()
	err = f()
	finished = true
	if ctx.Err() != nil && err != nil {
		done(context.Canceled) // the caller ended it
	} else {
		done(err)
	}
	return err
}

var errSlow = errs.New(errs.Unavailable, "there was no answer in time")
