package api

import (
	"math"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"miren.dev/runtime/pkg/errs"
)

// maxBuckets bounds the callers whose requests are counted separately. Further
// ones share one bucket.
const maxBuckets = 16384

// limiter bounds how many requests each caller makes: a token bucket for each
// key, for each other proof that a face knows, and for each address of requests
// without either.
type limiter struct {
	rate  rate.Limit
	burst int
	now   func() time.Time

	mu    sync.Mutex
	all   map[string]*rate.Limiter
	rest  *rate.Limiter // of the callers beyond maxBuckets
	swept time.Time
}

// newLimiter returns a limiter of so many requests each second; nil for 0: none.
func newLimiter(perSecond, burst int64, now func() time.Time) *limiter {
	if perSecond == 0 {
		return nil
	}
	l := &limiter{rate: rate.Limit(perSecond), burst: int(max(burst, 1)), now: now, all: map[string]*rate.Limiter{}, swept: now()}
	l.rest = rate.NewLimiter(l.rate, l.burst)
	return l
}

// wait counts a request of a caller. It returns how long the caller must wait
// before it repeats the request; 0: the request is permitted.
func (l *limiter) wait(caller string) time.Duration {
	now := l.now()
	b := l.bucket(caller, now)
	r := b.ReserveN(now, 1)
	d := r.DelayFrom(now)
	if d > 0 {
		r.CancelAt(now) // a refused request costs nothing
	}
	return d
}

// refill is the time in which an empty bucket fills: one that was unused for as
// long is like a new one.
func (l *limiter) refill() time.Duration {
	return time.Duration(math.Ceil(float64(l.burst) / float64(l.rate) * float64(time.Second)))
}

func (l *limiter) bucket(caller string, now time.Time) *rate.Limiter {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Sub(l.swept) >= max(l.refill(), time.Second) {
		l.swept = now
		for c, b := range l.all {
			if b.TokensAt(now) >= float64(l.burst) {
				delete(l.all, c)
			}
		}
	}
	b := l.all[caller]
	switch {
	case b != nil:
		return b
	case len(l.all) >= maxBuckets:
		return l.rest
	}
	b = rate.NewLimiter(l.rate, l.burst)
	l.all[caller] = b
	return b
}

// subjecter is a face that knows callers without an API key.
type subjecter interface {
	// Subject names the caller of a request by what the request proves; "": nothing.
	Subject(*http.Request) string
}

// limit returns why a request must be repeated later; 0: it is permitted.
func (s *Server) limit(r *http.Request, face http.Handler) time.Duration {
	if s.limiter == nil {
		return 0
	}
	return s.limiter.wait(s.subject(r, face))
}

// subject names the caller whose requests are counted together. A key that is
// not valid counts for its address, so guesses of keys are bounded.
func (s *Server) subject(r *http.Request, face http.Handler) string {
	if key := Key(r); key != "" {
		if id, err := s.cfg.Authenticate(r.Context(), key); err == nil {
			return "key " + id.Key
		}
	}
	if f, ok := face.(subjecter); ok {
		if c := f.Subject(r); c != "" {
			return "face " + c
		}
	}
	return "address " + network(r.RemoteAddr)
}

// network returns the address of a peer, of IPv6 the network that one host has.
func network(peer string) string {
	host, _, err := net.SplitHostPort(peer)
	if err != nil {
		return peer
	}
	a, err := netip.ParseAddr(host)
	if err != nil {
		return host
	}
	if a = a.Unmap().WithZone(""); a.Is6() {
		return netip.PrefixFrom(a, 64).Masked().String()
	}
	return a.String()
}

// retrySeconds returns a value of Retry-After: whole seconds, at least 1.
func retrySeconds(d time.Duration) string {
	return strconv.FormatInt(int64(max(math.Ceil(d.Seconds()), 1)), 10)
}

// errLimited is what a caller gets that makes too many requests.
func errLimited(l *limiter) error {
	return errs.New(errs.ResourceExhausted, "more than %d requests per second", int64(l.rate)).
		WithHint("repeat the request after Retry-After seconds; api.rate and api.burst of the server's configuration are the limit")
}
