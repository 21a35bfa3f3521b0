package metrics

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	dto "github.com/prometheus/client_model/go"
	"golang.org/x/sync/errgroup"

	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/entity/informer"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/metricstore"
)

const (
	readers      = 8               // sandboxes that are read at once
	readTime     = 5 * time.Second // that one may take
	maxSandboxes = 2000            // that get samples, those of apps first
	forgetAfter  = time.Hour       // since a series had its last sample
)

// Host is what a machine uses.
type Host struct {
	CPUSeconds                                                  float64 // since its boot
	MemoryBytes, Processes, ReceivedBytes, SentBytes, DiskBytes int64
}

// Recorder takes samples. Its fields are set before Run.
type Recorder struct {
	Store     *metricstore.Store
	Informers *informer.Set
	// Stats reads a sandbox. NotFound, FailedPrecondition: it does not run.
	Stats func(ctx context.Context, sid id.Sandbox) (sandbox.Stats, error)
	// Ingress reads the metrics of the ingress; nil: there is none.
	Ingress func(ctx context.Context) ([]*dto.MetricFamily, error)
	// Hosts reads the machines that answer; nil: none is read.
	Hosts    func(ctx context.Context) map[id.Node]Host
	Interval time.Duration
	Logger   *slog.Logger

	last time.Time            // of the last round; zero: there was none
	seen map[string]time.Time // last samples of counters, by series
}

// Run takes samples until ctx ends. An error of the store is logged, and later
// samples are tried.
func (r *Recorder) Run(ctx context.Context) error {
	t := time.NewTicker(r.Interval)
	defer t.Stop()
	failed := false
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
		err := r.Round(ctx, time.Now())
		if err != nil && ctx.Err() == nil && !failed {
			r.Logger.Error("metrics are not kept", "error", err)
		}
		failed = err != nil
	}
}

// Round takes one sample of everything.
func (r *Recorder) Round(ctx context.Context, now time.Time) error {
	x := &round{Recorder: r, at: now}
	x.sandboxes(ctx)
	x.hosts(ctx)
	x.ingress(ctx)
	if ctx.Err() != nil {
		return errs.Wrap(ctx.Err(), "take samples")
	}
	// A counter that appears between two rounds began at 0.
	if len(x.began) > 0 {
		if err := r.Store.Append(ctx, r.last, x.began); err != nil {
			return err
		}
	}
	r.last = now
	maps.DeleteFunc(r.seen, func(_ string, at time.Time) bool { return now.Sub(at) > forgetAfter })
	return r.Store.Append(ctx, now, x.samples)
}

// round is the samples of one time.
type round struct {
	*Recorder
	at      time.Time
	mu      sync.Mutex
	samples []metricstore.Sample
	began   []metricstore.Sample
}

func (x *round) gauge(name string, labels map[string]string, v float64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.samples = append(x.samples, metricstore.Sample{Name: name, Labels: labels, Value: v})
}

func (x *round) counter(name string, labels map[string]string, v float64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.seen == nil {
		x.seen = map[string]time.Time{}
	}
	key := name
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		key += "\x00" + k + "\x00" + labels[k]
	}
	_, known := x.seen[key]
	x.seen[key] = x.at
	if !known && !x.last.IsZero() {
		x.began = append(x.began, metricstore.Sample{Name: name, Labels: labels})
	}
	x.samples = append(x.samples, metricstore.Sample{Name: name, Labels: labels, Value: v})
}

func (x *round) sandboxes(ctx context.Context) {
	var running []*sandbox.Sandbox
	for _, sb := range informer.Of[sandbox.Sandbox](x.Informers).List() {
		if sb.Status.Phase == sandbox.SandboxPhaseRunning && sb.Spec.Node != "" {
			running = append(running, sb)
		}
	}
	if len(running) > maxSandboxes {
		slices.SortStableFunc(running, func(a, b *sandbox.Sandbox) int {
			return cmp.Or(-cmp.Compare(min(1, len(a.Spec.App)), min(1, len(b.Spec.App))), strings.Compare(string(a.ID), string(b.ID)))
		})
		running = running[:maxSandboxes]
	}
	ctx, cancel := context.WithTimeout(ctx, max(x.Interval, readTime))
	defer cancel()
	var g errgroup.Group
	g.SetLimit(readers)
	for _, sb := range running {
		g.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, readTime)
			defer cancel()
			st, err := x.Stats(ctx, sb.GetID())
			if err != nil {
				return nil // it has ended, or its node is away: then there is no sample
			}
			labels := map[string]string{"app": string(sb.Spec.App), "service": sb.Spec.Service, "sandbox": string(sb.ID), "node": string(sb.Spec.Node)}
			x.counter(sandboxCPU, labels, st.CPU.Seconds())
			x.gauge(sandboxMemory, labels, float64(st.MemoryBytes))
			x.gauge(sandboxProcesses, labels, float64(st.PIDs))
			if st.ReceivedBytes != nil && st.SentBytes != nil {
				x.counter(sandboxReceived, labels, float64(*st.ReceivedBytes))
				x.counter(sandboxSent, labels, float64(*st.SentBytes))
			}
			return nil
		})
	}
	_ = g.Wait() // no function returns an error
}

func (x *round) hosts(ctx context.Context) {
	if x.Hosts == nil {
		return
	}
	for node, h := range x.Hosts(ctx) {
		x.host(node, h)
	}
}

func (x *round) host(node id.Node, h Host) {
	labels := map[string]string{"node": string(node)}
	x.gauge(nodeCPU, labels, h.CPUSeconds) // it began long ago
	x.gauge(nodeReceived, labels, float64(h.ReceivedBytes))
	x.gauge(nodeSent, labels, float64(h.SentBytes))
	x.gauge(nodeMemory, labels, float64(h.MemoryBytes))
	x.gauge(nodeProcesses, labels, float64(h.Processes))
	x.gauge(nodeDisk, labels, float64(h.DiskBytes))
}

// Names of the metrics of the ingress from which samples come.
const (
	ingressRequests = "runtime_ingress_service_requests_total"
	ingressSeconds  = "runtime_ingress_service_request_seconds"
	ingressInFlight = "runtime_ingress_service_requests_in_flight"
)

func (x *round) ingress(ctx context.Context) {
	if x.Ingress == nil {
		return
	}
	families, err := x.Ingress(ctx)
	if err != nil {
		return // it is being replaced; the status of the server says more
	}
	served := map[string]bool{} // services that had a request
	of := func(m *dto.Metric) (labels map[string]string, key string) {
		labels = map[string]string{}
		for _, l := range m.GetLabel() {
			switch l.GetName() {
			case "app_id":
				labels["app"] = l.GetValue()
			case "service", "code":
				labels[l.GetName()] = l.GetValue()
			}
		}
		return labels, labels["app"] + "/" + labels["service"]
	}
	for _, f := range families {
		switch f.GetName() {
		case ingressRequests:
			for _, m := range f.GetMetric() {
				if labels, key := of(m); m.GetCounter().GetValue() > 0 {
					served[key] = true
					x.counter(requests, labels, m.GetCounter().GetValue())
				}
			}
		case ingressSeconds:
			for _, m := range f.GetMetric() {
				labels, _ := of(m)
				h := m.GetHistogram()
				if h.GetSampleCount() == 0 {
					continue
				}
				for _, b := range h.GetBucket() {
					l := maps.Clone(labels)
					l["le"] = strconv.FormatFloat(b.GetUpperBound(), 'g', -1, 64)
					x.counter(requestSeconds, l, float64(b.GetCumulativeCount()))
				}
			}
		}
	}
	for _, f := range families {
		if f.GetName() != ingressInFlight {
			continue
		}
		for _, m := range f.GetMetric() {
			if labels, key := of(m); served[key] || m.GetGauge().GetValue() > 0 {
				x.gauge(requestsInFlight, labels, m.GetGauge().GetValue())
			}
		}
	}
}
