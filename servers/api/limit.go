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

	"miren.dev/runtime/domain/trust"
	"miren.dev/runtime/pkg/errs"
)

// maxBuckets bounds the callers whose requests are counted separately. Further
// ones share one bucket.
const maxBuckets = 16384

// limiter bounds how many requests each caller makes: a token bucket for each
// key, for each other proof that a face knows, and for each address of requests
// without either.
type limiter struct {
	rate  rate.Limit // rate.Inf: only callers with a rate of their own are bounded
	burst int
	now   func() time.Time

	mu    sync.Mutex
	all   map[string]*rate.Limiter
	rest  *rate.Limiter // of the callers beyond maxBuckets
	swept time.Time
}

// newLimiter returns a limiter of so many requests each second; 0: no limit.
func newLimiter(perSecond, burst int64, now func() time.Time) *limiter {
	l := &limiter{rate: rate.Limit(perSecond), burst: int(max(burst, 1)), now: now, all: map[string]*rate.Limiter{}, swept: now()}
	if perSecond == 0 {
		l.rate = rate.Inf
	}
	l.rest = rate.NewLimiter(l.rate, l.burst)
	return l
}

// of returns the rate and the burst of a caller with a rate of its own; 0: none.
func (l *limiter) of(own int64) (rate.Limit, int) {
	if own == 0 || rate.Limit(own) >= l.rate {
		return l.rate, l.burst
	}
	return rate.Limit(own), int(own)
}

// wait counts a request of a caller. It returns how long the caller must wait
// before it repeats the request; 0: the request is permitted.
func (l *limiter) wait(caller string, own int64) time.Duration {
	limit, burst := l.of(own)
	if limit == rate.Inf {
		return 0
	}
	now := l.now()
	b := l.bucket(caller, limit, burst, now)
	r := b.ReserveN(now, 1)
	d := r.DelayFrom(now)
	if d > 0 {
		r.CancelAt(now) // a refused request costs nothing
	}
	return d
}

// sweepInterval is the least time between two searches for full buckets: a
// caller whose bucket is full is like a new one.
const sweepInterval = time.Second

func (l *limiter) bucket(caller string, limit rate.Limit, burst int, now time.Time) *rate.Limiter {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Sub(l.swept) >= sweepInterval {
		l.swept = now
		for c, b := range l.all {
			if b.TokensAt(now) >= float64(b.Burst()) {
				delete(l.all, c)
			}
		}
	}
	b := l.all[caller]
	switch {
	case b != nil && b.Limit() == limit:
		return b
	case b == nil && len(l.all) >= maxBuckets:
		return l.rest
	}
	b = rate.NewLimiter(limit, burst)
	l.all[caller] = b
	return b
}

// subjecter is a face that knows callers without an API key.
type subjecter interface {
	// Subject names the caller of a request by what the request proves; "": nothing.
	Subject(*http.Request) string
}

// limit returns how long to wait before a request is repeated, and why; 0: it is
// permitted.
func (s *Server) limit(r *http.Request, face http.Handler) (time.Duration, error) {
	caller, own := s.subject(r, face)
	d := s.limiter.wait(caller, own)
	if d == 0 {
		return 0, nil
	}
	return d, s.limiter.refused(own)
}

// subject names the caller whose requests are counted together, and the rate of
// its key. A key that is not valid counts for its address, so guesses of keys are
// bounded. A token is verified only if its address may make the request.
func (s *Server) subject(r *http.Request, face http.Handler) (caller string, own int64) {
	if key := Key(r); key != "" && !trust.IsToken(key) {
		if id, err := s.cfg.Authenticate(r.Context(), key); err == nil {
			if s.cfg.RateOf != nil {
				own = s.cfg.RateOf(id.Key)
			}
			return "key " + id.Key, own
		}
	}
	if f, ok := face.(subjecter); ok {
		if c := f.Subject(r); c != "" {
			return "face " + c, 0
		}
	}
	return "address " + network(r.RemoteAddr), 0
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

// refused is what a caller gets that makes too many requests.
func (l *limiter) refused(own int64) error {
	limit, _ := l.of(own)
	err := errs.New(errs.ResourceExhausted, "more than %d requests per second", int64(limit))
	if limit == l.rate {
		return err.WithHint("repeat the request after Retry-After seconds; api.rate and api.burst of the server's configuration are the limit")
	}
	return err.WithHint("repeat the request after Retry-After seconds; the limit is the key's own (`r key create --rate`)")
}
