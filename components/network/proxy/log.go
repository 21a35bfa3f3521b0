package proxy

import (
	"context"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"miren.dev/runtime/pkg/egress"
)

// queued bounds the records that wait to be delivered.
const queued = 1024

// accessLog hands records on without ever making a guest wait.
type accessLog struct {
	deliverTo func(context.Context, egress.Record)
	queue     chan egress.Record
	missed    atomic.Int64
}

func newAccessLog(to func(context.Context, egress.Record)) *accessLog {
	return &accessLog{deliverTo: to, queue: make(chan egress.Record, queued)}
}

func (l *accessLog) add(r egress.Record) {
	if l.deliverTo == nil {
		return
	}
	select {
	case l.queue <- r:
	default:
		l.missed.Add(1)
	}
}

// deliver calls deliverTo until ctx ends.
func (l *accessLog) deliver(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case r := <-l.queue:
			r.Missed = l.missed.Swap(0)
			l.deliverTo(ctx, r)
		}
	}
}

// record keeps a request of a guest and reports it.
func (p *Proxy) record(guest netip.Addr, r egress.Record) {
	r.Time, r.Name = time.Now(), printable(r.Name)
	p.mu.Lock()
	defer p.mu.Unlock()
	g := p.guests[guest]
	if g == nil {
		return
	}
	r.Sandbox = g.id
	if len(g.recent) == maxRecentSize {
		g.recent = append(g.recent[:0], g.recent[1:]...)
	}
	g.recent = append(g.recent, r)
	p.log.add(r)
}

// Recent returns the last records of a guest, the oldest first.
func (p *Proxy) Recent(a netip.Addr) []egress.Record {
	p.mu.Lock()
	defer p.mu.Unlock()
	if g := p.guests[a]; g != nil {
		return slices.Clone(g.recent)
	}
	return nil
}

// printable returns a name that can be printed on a terminal.
func printable(name string) string {
	if strings.ContainsFunc(name, func(c rune) bool { return c <= ' ' || c > '~' }) {
		name = strings.Trim(strconv.QuoteToASCII(name), `"`)
	}
	return name[:min(len(name), 253)]
}
