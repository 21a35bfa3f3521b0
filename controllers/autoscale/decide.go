package autoscale

import (
	"context"
	"math"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/domain/sandboxes"
	"miren.dev/runtime/pkg/schema"
)

const (
	// upWindow is the time over which the load is averaged before the number rises.
	upWindow = 3 * time.Second
	// maxDownWindow bounds the time for which a lower load must last before the number falls.
	maxDownWindow = time.Minute
	// tolerance is the part of a sandbox by which the load may exceed what the sandboxes are aimed at.
	tolerance = 0.1
	// cpuEvery is the time between two readings of the CPU time of sandboxes, over which their use is averaged.
	cpuEvery = 5 * time.Second
	// statsTimeout bounds a reading of all sandboxes of a pool, and statsAtOnce how many are read at a time.
	statsTimeout = 2 * time.Second
	statsAtOnce  = 32
)

// history is what is known of the load of a pool. Only one run at a time has it.
type history struct {
	samples  []sample   // of the last upWindow
	wanted   []decision // of the last maxDownWindow; the oldest one is the number before
	used     time.Time  // when it last had a request
	requests int64      // and missed: counts of the ingress at the last sample
	missed   int64
	counted  bool // whether requests and missed are known

	cpuAt    time.Time
	readings map[schema.ID]sandbox.Stats
	cpu      int64 // sandboxes that the CPU wants; 0: not known
}

type sample struct {
	at   time.Time
	over time.Duration
	load float64
}

type decision struct {
	at time.Time
	n  int64
}

// decide returns how many sandboxes a pool of a version that serves is to have.
func (r *Reconciler) decide(ctx context.Context, p *sandbox.SandboxPool) (int64, error) {
	now, auto := r.now(), p.Spec.Autoscale
	r.mu.Lock()
	h := r.history[p.ID]
	if h == nil {
		h = &history{used: now, wanted: []decision{{now, p.Wanted()}}}
		if r.history == nil {
			r.history = map[schema.ID]*history{}
		}
		r.history[p.ID] = h
	}
	m, known := r.load[service{p.Spec.AppVersion, p.Spec.Service}]
	delete(r.asleep, p.ID)
	r.mu.Unlock()

	serves := len(p.Spec.Template.Ports) > 0
	want := int64(1)
	if serves && known {
		want = h.observe(m, auto)
	}
	known = known && now.Sub(m.at) <= 2*interval+upWindow
	if serves && known && want == 0 && auto.Min == 0 && (p.Wanted() == 0 || now.Sub(h.used) >= auto.Idle) {
		h.wanted = []decision{{now, 0}}
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.asleep == nil {
			r.asleep = map[schema.ID]int64{}
		}
		r.asleep[p.ID] = h.missed
		return 0, nil
	}
	if auto.CPU != nil {
		if err := r.readCPU(ctx, p, h, now); err != nil {
			return 0, err
		}
		want = max(want, h.cpu)
	}
	if serves && !known || !serves && auto.CPU != nil && h.cpu == 0 {
		want, h.used = max(want, p.Wanted()), now // what is not known lowers nothing
	}
	want = min(max(want, auto.Min, 1), auto.Max)
	h.wanted = append(h.wanted, decision{now, want})
	since := now.Add(-min(auto.Idle, maxDownWindow))
	for len(h.wanted) > 1 && !h.wanted[0].at.After(since) {
		h.wanted = h.wanted[1:]
	}
	for _, d := range h.wanted {
		want = max(want, d.n)
	}
	return min(want, auto.Max), nil
}

// observe adds a measure, if it is new, and returns how many sandboxes the requests want; 0: it has none.
func (h *history) observe(m measure, auto *sandbox.Autoscale) int64 {
	fresh := len(h.samples) == 0 || m.at.After(h.samples[len(h.samples)-1].at)
	load := m.InFlight + float64(m.Held)
	if fresh {
		if load > 0 || h.counted && (m.Requests != h.requests || m.Missed != h.missed) {
			h.used = m.at
		}
		if h.counted && m.Missed > h.missed {
			load = max(load, 1) // another version has served it
		}
		h.requests, h.missed, h.counted = m.Requests, m.Missed, true
		h.samples = append(h.samples, sample{m.at, max(m.over, time.Millisecond), load})
		for m.at.Sub(h.samples[0].at) > upWindow {
			h.samples = h.samples[1:]
		}
	}
	var sum, over float64
	for _, s := range h.samples {
		sum, over = sum+s.load*s.over.Seconds(), over+s.over.Seconds()
	}
	n := int64(math.Ceil(sum/over/float64(auto.Concurrency) - tolerance))
	if h.samples[len(h.samples)-1].load > 0 {
		n = max(n, 1)
	}
	return n
}

// readCPU reads the CPU time of the ready sandboxes of a pool, if the last reading is old enough, and sets how many of
// them their use wants. One that cannot be read counts as used as aimed at.
func (r *Reconciler) readCPU(ctx context.Context, p *sandbox.SandboxPool, h *history, now time.Time) error {
	if now.Sub(h.cpuAt) < cpuEvery {
		return nil
	}
	h.cpuAt = now
	all, err := sandboxes.InPool(ctx, r.Store, p.GetID())
	if err != nil {
		return err
	}
	ready := slices.DeleteFunc(sandboxes.Classify(all).Live, func(sb *sandbox.Sandbox) bool { return !sb.Status.Ready })
	target := float64(*p.Spec.Autoscale.CPU) / 100
	stats := r.readStats(ctx, ready)
	readings, used, read := map[schema.ID]sandbox.Stats{}, 0.0, 0
	for i, sb := range ready {
		st := stats[i]
		before, ok := h.readings[sb.ID]
		if st != nil {
			readings[sb.ID] = *st
		}
		if st == nil || !ok || !st.At.After(before.At) || st.CPU < before.CPU {
			used += target
			continue
		}
		limit := float64(sb.Spec.Template.Resources.CPUMillis) / 1000
		used, read = used+(st.CPU-before.CPU).Seconds()/st.At.Sub(before.At).Seconds()/limit, read+1
	}
	h.readings, h.cpu = readings, 0
	if read > 0 {
		h.cpu = max(int64(math.Ceil(used/target-tolerance)), 1)
	}
	return nil
}

// readStats reads sandboxes, nil for those that cannot be read in time.
func (r *Reconciler) readStats(ctx context.Context, sbs []*sandbox.Sandbox) []*sandbox.Stats {
	ctx, cancel := context.WithTimeout(ctx, statsTimeout)
	defer cancel()
	out := make([]*sandbox.Stats, len(sbs))
	var g errgroup.Group
	g.SetLimit(statsAtOnce)
	for i, sb := range sbs {
		g.Go(func() error {
			if st, err := r.Meter.Stats(ctx, sb.GetID()); err == nil {
				out[i] = &st
			}
			return nil
		})
	}
	_ = g.Wait() // none fails
	return out
}
