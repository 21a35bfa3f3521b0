package ingress

import (
	"context"
	"net/http"
	"sync"
	"time"

	"miren.dev/runtime/pkg/schema"
)

// standBy waits until this process may serve. It returns false if ctx ends first.
func (in *Ingress) standBy(ctx context.Context) bool {
	if in.pred == nil {
		return true
	}
	select {
	case <-in.serve:
	case <-in.pred.stopped():
	case <-ctx.Done():
		return false
	}
	return true
}

// standsBy reports whether this process waits for its predecessor.
func (in *Ingress) standsBy() bool {
	if in.pred == nil {
		return false
	}
	select {
	case <-in.serve:
		return false
	case <-in.pred.stopped():
		return false
	default:
		return true
	}
}

// drain lets requests finish for DrainTimeout.
//
// With a successor, connections that wait for their next request stay open for the
// first half, and the answer to that request asks the client to connect again: a
// client whose request crosses the end of its connection could not know whether
// it was heard. A request that waits for a sandbox goes on waiting.
func (in *Ingress) drain(ctx context.Context, srv *http.Server) {
	limit, waiting := in.cfg.DrainTimeout, in.cfg.DrainTimeout/2
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	if in.successors.Load() > 0 {
		waiting = limit * 9 / 10
	}
	stopWaiting := time.AfterFunc(waiting, func() { close(in.stopping) })
	defer stopWaiting.Stop()
	var http3 sync.WaitGroup
	defer http3.Wait()
	http3.Go(func() { in.http3.drain(drain, limit) })
	if in.successors.Load() > 0 {
		for _, l := range append(in.listeners[:len(in.listeners):len(in.listeners)], in.secure...) {
			l.Close()
		}
		in.draining.Store(true) // only now no connection is accepted
		in.cfg.Logger.Info("a successor serves; requests under way go on", "limit", limit)
		in.awaitConnections(drain, limit/2)
	}
	if err := srv.Shutdown(drain); err != nil {
		in.cfg.Logger.Warn("requests were cut off at the end of the drain time", "error", err)
		srv.Close()
	}
	in.tunnels.drain(drain)
	select { // the successor counts the predecessor's requests by this process
	case <-in.pred.ended():
	case <-drain.Done():
	case <-in.noPredecessor():
	}
}

// awaitConnections waits until no client is connected but by a tunnel, for at most
// limit.
func (in *Ingress) awaitConnections(ctx context.Context, limit time.Duration) {
	end := time.NewTimer(limit)
	defer end.Stop()
	tick := time.NewTicker(reportEvery)
	defer tick.Stop()
	for in.conns.Load() > in.tunnels.count()+in.http3.count() {
		select {
		case <-tick.C:
		case <-end.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

var always = func() <-chan struct{} { c := make(chan struct{}); close(c); return c }()

// noPredecessor returns a closed channel if there is no predecessor to wait for.
func (in *Ingress) noPredecessor() <-chan struct{} {
	if in.pred == nil || in.pred.conn == nil {
		return always
	}
	return nil
}

// sendElsewhere has the client connect again, to the successor. By HTTP/2 other
// streams of the connection go on. HTTP/3 has no such header.
func (x *exchange) sendElsewhere(h http.Header) {
	if x.in.draining.Load() && x.r.ProtoMajor < 3 {
		h["Connection"] = []string{"close"}
	}
}

// position returns the position up to which this process and its predecessor have
// every change.
func (in *Ingress) position() schema.Token {
	at := in.follower.position()
	if in.pred == nil || in.pred.conn == nil {
		return at
	}
	select {
	case <-in.pred.gone:
		return at
	default:
	}
	p := in.pred.last()
	if p == nil {
		return schema.Token{}
	}
	if p.Table.Revision < at.Revision {
		return p.Table
	}
	return at
}

// inflight counts the requests of this process and its predecessor.
func (in *Ingress) inflight(version schema.ID) map[schema.ID]int64 {
	out := in.registry.inflight(version)
	if p := in.pred.last(); p != nil {
		for _, b := range p.Sandboxes {
			if version == "" || b.Version == version {
				out[b.Sandbox] += b.N
			}
		}
	}
	return out
}
