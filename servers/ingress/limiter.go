package ingress

import (
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// maxClients bounds the clients that a limiter knows.
const maxClients = 20_000

// limiter bounds the requests of each client of a route.
type limiter struct {
	rate   rate.Limit
	burst  int
	refill time.Duration // after it an idle client has its whole burst again

	mu      sync.Mutex
	clients map[netip.Addr]*visitor
	swept   time.Time
}

type visitor struct {
	bucket *rate.Limiter
	seen   time.Time
}

func newLimiter(perSecond, burst int64) *limiter {
	return &limiter{
		rate: rate.Limit(perSecond), burst: int(burst), clients: map[netip.Addr]*visitor{},
		refill: time.Duration(float64(burst)/float64(perSecond)*float64(time.Second)) + time.Second,
	}
}

// allow reports whether a client may make a request now, and counts it.
func (l *limiter) allow(ip netip.Addr) bool {
	if ip.Is6() { // one host has at least a /64
		p, _ := ip.Prefix(64)
		ip = p.Addr()
	}
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	v := l.clients[ip]
	if v == nil {
		if len(l.clients) >= maxClients {
			l.forget(now)
		}
		v = &visitor{bucket: rate.NewLimiter(l.rate, l.burst)}
		l.clients[ip] = v
	}
	v.seen = now
	return v.bucket.AllowN(now, 1)
}

// forget drops the clients that have their whole burst again; if there is none, any.
func (l *limiter) forget(now time.Time) {
	if now.Sub(l.swept) > time.Second {
		l.swept = now
		for ip, v := range l.clients {
			if now.Sub(v.seen) > l.refill {
				delete(l.clients, ip)
			}
		}
	}
	for ip := range l.clients {
		if len(l.clients) < maxClients {
			return
		}
		delete(l.clients, ip)
	}
}
