package ingress

import (
	"context"
	"encoding/hex"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"miren.dev/runtime/pkg/preview"
	"miren.dev/runtime/pkg/schema"
)

// previewLabel is the name in metrics and the access log of all previews
// together. No app has it.
const previewLabel = "(preview)"

// guest is a sandbox with previews, in one table.
type guest struct {
	Guest
	state *guestState
	ports map[int]*previewState // by port; 0: every other port
}

// guestState is what outlives tables of a sandbox with previews.
type guestState struct {
	*appState
	active   atomic.Int64 // requests, those that wait for it to be resumed included
	last     atomic.Int64 // end of the last one, Unix nanoseconds
	waking   atomic.Bool  // a request asks for its resumption
	nextWake atomic.Int64 // not before this time is it asked for again, Unix nanoseconds

	backends map[string]*backend // by host:port; guarded by registry.mu
}

// previewState is what outlives tables of a preview that does not change.
type previewState struct {
	Preview
	key    []byte
	ended  context.Context // ends when the preview is deleted or changed
	cancel context.CancelFunc
}

func (p *previewState) expired(now time.Time) bool {
	return p.Expires != 0 && now.UnixMilli() >= p.Expires
}

// newGuests returns the sandboxes with previews.
func newGuests(s *State, reg *registry) map[schema.ID]*guest {
	out := make(map[schema.ID]*guest, len(s.Guests))
	for _, g := range s.Guests {
		out[g.ID] = &guest{Guest: g, state: reg.guest(g.ID), ports: map[int]*previewState{}}
	}
	for _, p := range s.Previews {
		if g := out[p.Sandbox]; g != nil {
			g.ports[int(p.Port)] = reg.preview(p)
		}
	}
	return out
}

// preview returns the preview of a port and its sandbox; nil if there is none.
func (t *table) preview(sid schema.ID, port int) (*guest, *previewState) {
	g := t.guests[sid]
	if g == nil {
		return nil, nil
	}
	if p := g.ports[port]; p != nil {
		return g, p
	}
	return g, g.ports[0]
}

// previewHost returns the port of a sandbox that a host names. Such a host is of
// previews only, whatever routes and apps there are.
func (in *Ingress) previewHost(host string) (sid schema.ID, port int, ok bool) {
	for _, d := range in.cfg.LocalDomains { // with their leading dot
		if label, found := strings.CutSuffix(host, d); found {
			if sb, port, ok := preview.ParseLabel(label); ok {
				return schema.ID(sb), port, true
			}
		}
	}
	return "", 0, false
}

func (r *registry) guest(sid schema.ID) *guestState {
	r.mu.Lock()
	defer r.mu.Unlock()
	g := r.guests[sid]
	if g == nil {
		g = &guestState{appState: newAppState(App{Name: previewLabel}, r.metrics), backends: map[string]*backend{}}
		r.guests[sid] = g
	}
	return g
}

// preview returns the state of p. A preview that has changed gets a new one;
// retainPreviews ends the requests of the old one when the table is in place.
func (r *registry) preview(p Preview) *previewState {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.previews[p.ID]; s != nil && s.Preview == p {
		return s
	} else if s != nil {
		r.changed = append(r.changed, s)
	}
	s := &previewState{Preview: p}
	s.key, _ = hex.DecodeString(p.Key) // no key opens nothing
	s.ended, s.cancel = context.WithCancel(context.Background())
	r.previews[p.ID] = s
	return s
}

// guestBackend returns the backend of a port, with a request counted on it.
func (r *registry) guestBackend(g *guest, port int, dial func(context.Context, string) (net.Conn, error)) *backend {
	address := net.JoinHostPort(g.Address, strconv.Itoa(port))
	r.mu.Lock()
	defer r.mu.Unlock()
	b := g.state.backends[address]
	if b == nil {
		b = &backend{Sandbox: Sandbox{ID: g.ID, Address: address}, dial: dial}
		if r.guests[g.ID] == g.state {
			g.state.backends[address] = b
		} else { // the sandbox left the table meanwhile
			r.leaving[b] = struct{}{}
		}
	}
	b.inflight.Add(1)
	return b
}

// leave ends a request on a backend. One that could not be reached is forgotten,
// so that requests for many ports leave nothing.
func (r *registry) leave(g *guest, b *backend, reached bool) {
	if b.inflight.Add(-1) > 0 || reached {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if b.inflight.Load() == 0 && g.state.backends[b.Address] == b {
		delete(g.state.backends, b.Address)
		r.leaving[b] = struct{}{}
	}
}

// retainPreviews drops what s lacks, and ends the requests of previews that were
// deleted or changed. The caller holds r.mu.
func (r *registry) retainPreviews(s *State) {
	previews := make(map[schema.ID]bool, len(s.Previews))
	for _, p := range s.Previews {
		previews[p.ID] = true
	}
	for id, p := range r.previews {
		if !previews[id] {
			delete(r.previews, id)
			p.cancel()
		}
	}
	for _, p := range r.changed {
		p.cancel()
	}
	r.changed = nil
	addresses := make(map[schema.ID]string, len(s.Guests))
	for _, g := range s.Guests {
		addresses[g.ID] = g.Address
	}
	for id, g := range r.guests {
		now, stays := addresses[id]
		for address, b := range g.backends {
			if host, _, _ := net.SplitHostPort(address); !stays || host != now {
				delete(g.backends, address)
				r.leaving[b] = struct{}{}
			}
		}
		if !stays {
			delete(r.guests, id)
		}
	}
}

// activity returns how many requests a sandbox has by its previews, and since
// when it has none.
func (in *Ingress) activity(sid schema.ID) (active int64, idle time.Duration) {
	in.registry.mu.Lock()
	g := in.registry.guests[sid]
	in.registry.mu.Unlock()
	last := in.started // what was before is not known
	if g != nil {
		active = g.active.Load()
		if at := time.Unix(0, g.last.Load()); at.After(last) {
			last = at
		}
	}
	if p := in.pred.last(); p != nil {
		if active += p.Guests[sid]; p.Guests[sid] > 0 {
			last = time.Now()
		}
	}
	return active, max(time.Since(last), 0)
}
