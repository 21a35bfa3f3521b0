package ingress

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	admin "miren.dev/runtime/api/ingress"
	"miren.dev/runtime/pkg/schema"
)

// sampleEvery is the time between two counts of the requests in flight during a request for the load.
const sampleEvery = 100 * time.Millisecond

// load counts the requests for a service of a version. It outlives tables.
type load struct {
	requests atomic.Int64 // that were sent to a sandbox
	held     atomic.Int64 // that wait for a sandbox
	missed   atomic.Int64 // that drew the version and were sent to another one, since it had no sandbox
}

// load returns the counts of a service of a version.
func (r *registry) load(key Service) *load {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.loads[key]
	if l == nil {
		l = &load{}
		r.loads[key] = l
	}
	return l
}

// retainLoads drops the counts of versions that do not serve any more. The caller holds mu.
func (r *registry) retainLoads(s *State) {
	serving := map[schema.ID]bool{}
	for _, a := range s.Apps {
		for _, sh := range a.Versions {
			serving[sh.Version] = true
		}
	}
	for key := range r.loads {
		if !serving[key.Version] {
			delete(r.loads, key)
		}
	}
}

// inflightByService adds the requests in flight by service of a version to sum.
func (r *registry) inflightByService(sum map[Service]int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	count := func(b *backend) {
		if n := b.inflight.Load(); n > 0 {
			sum[Service{b.App, b.Service, b.Version}] += n
		}
	}
	for _, b := range r.backends {
		count(b)
	}
	for b := range r.leaving {
		count(b)
	}
}

// wakes counts how often a request began to wait for a version and service for which none did.
type wakes struct {
	mu      sync.Mutex
	n       int64
	changed chan struct{} // closed by the next one; nil: nothing waits for it
}

func (w *wakes) add() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.n++
	if w.changed != nil {
		close(w.changed)
		w.changed = nil
	}
}

// after returns the count, and a channel that is closed when it is above seen.
func (w *wakes) after(seen int64) (int64, <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.n != seen {
		done := make(chan struct{})
		close(done)
		return w.n, done
	}
	if w.changed == nil {
		w.changed = make(chan struct{})
	}
	return w.n, w.changed
}

// load measures the load of all services for the time wait, or until a request begins to wait for a service for which
// none did when the count of these events was seen.
func (in *Ingress) load(ctx context.Context, seen int64, wait time.Duration) admin.Load {
	out := admin.Load{PID: in.pid}
	sum, samples, begin := map[Service]int64{}, 0, time.Now()
	end := time.NewTimer(wait)
	defer end.Stop()
	tick := time.NewTicker(sampleEvery)
	defer tick.Stop()
	for more := true; more; {
		in.registry.inflightByService(sum)
		samples++
		_, woken := in.registry.wakes.after(seen)
		select {
		case <-tick.C:
		case <-end.C:
			more = false
		case <-woken:
			more = false
		case <-ctx.Done():
			more = false
		}
	}
	out.Over = time.Since(begin)
	out.Wakes, _ = in.registry.wakes.after(seen) // before the counts, so that none is missed
	out.Services = in.loads(sum, samples)
	return out
}

// services returns the load of this moment.
func (in *Ingress) services() []admin.ServiceLoad {
	sum := map[Service]int64{}
	in.registry.inflightByService(sum)
	return in.loads(sum, 1)
}

// loads returns the load of all services, that of the predecessor included. sum has the
// requests in flight of this process, added up over samples.
func (in *Ingress) loads(sum map[Service]int64, samples int) []admin.ServiceLoad {
	before := map[Service]admin.ServiceLoad{}
	if p := in.pred.last(); p != nil {
		for _, s := range p.Services {
			before[Service{s.App, s.Service, s.Version}] = s
		}
	}
	out := []admin.ServiceLoad{}
	in.registry.mu.Lock()
	for key, l := range in.registry.loads {
		p := before[key]
		delete(before, key)
		out = append(out, admin.ServiceLoad{
			App: key.App, Service: key.Name, Version: key.Version, InFlight: float64(sum[key])/float64(samples) + p.InFlight,
			Requests: l.requests.Load() + p.Requests, Held: l.held.Load() + p.Held, Missed: l.missed.Load() + p.Missed,
		})
	}
	in.registry.mu.Unlock()
	for _, p := range before {
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b admin.ServiceLoad) int {
		return cmp.Or(cmp.Compare(a.Version, b.Version), cmp.Compare(a.Service, b.Service))
	})
	return out
}
