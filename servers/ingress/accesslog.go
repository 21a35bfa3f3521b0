package ingress

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"
)

const (
	// accessEvery is how long a line may wait in memory.
	accessEvery = time.Second
	// accessFull is the number of bytes at which lines are written at once.
	accessFull = 64 << 10
	// maxAccess bounds the lines in memory, in bytes; a disk that is slower than
	// the requests loses lines.
	maxAccess = 4 << 20
	// maxAccessField bounds what a client says, in bytes of a line.
	maxAccessField = 2048
)

var errAccessFull = errors.New("the access log is too slow")

// accessLog writes a line of JSON for each request. Requests add their line to a
// buffer; one goroutine writes it.
type accessLog struct {
	logger *slog.Logger
	query  bool
	out    io.Writer
	errors *slog.Logger
	wake   chan struct{}

	mu   sync.Mutex
	buf  []byte
	lost int64 // lines that found the buffer full
}

func newAccessLog(out io.Writer, query bool, errors *slog.Logger) *accessLog {
	a := &accessLog{out: out, query: query, errors: errors, wake: make(chan struct{}, 1)}
	a.logger = slog.New(slog.NewJSONHandler(a, &slog.HandlerOptions{ReplaceAttr: func(groups []string, at slog.Attr) slog.Attr {
		if len(groups) == 0 && (at.Key == slog.LevelKey || at.Key == slog.MessageKey) {
			return slog.Attr{}
		}
		return at
	}}))
	return a
}

// Write adds a line. Only the logger calls it.
func (a *accessLog) Write(line []byte) (int, error) {
	a.mu.Lock()
	full := len(a.buf)+len(line) > maxAccess
	if full {
		a.lost++
	} else {
		a.buf = append(a.buf, line...)
	}
	wake := len(a.buf) > accessFull
	a.mu.Unlock()
	if wake {
		select {
		case a.wake <- struct{}{}:
		default:
		}
	}
	if full {
		return 0, errAccessFull
	}
	return len(line), nil
}

// run writes lines until ctx ends, and then the lines that still wait.
func (a *accessLog) run(ctx context.Context) {
	t := time.NewTicker(accessEvery)
	defer t.Stop()
	var spare []byte
	for ended := false; !ended; {
		select {
		case <-t.C:
		case <-a.wake:
		case <-ctx.Done():
			ended = true
		}
		a.mu.Lock()
		lines, lost := a.buf, a.lost
		a.buf, a.lost = spare[:0], 0
		a.mu.Unlock()
		if len(lines) > 0 {
			if _, err := a.out.Write(lines); err != nil {
				a.errors.Error("the access log cannot be written", "error", err)
			}
		}
		if lost > 0 {
			a.errors.Warn("the access log is slower than the requests; lines are lost", "lines", lost)
		}
		if spare = lines; cap(spare) > 4*accessFull {
			spare = nil
		}
	}
}

// request adds the line of a request that ended.
func (a *accessLog) request(x *exchange, app string, begin time.Time, took time.Duration) {
	r := x.r
	attrs := make([]slog.Attr, 0, 20)
	attrs = append(attrs,
		slog.String("host", cut(r.Host)), slog.String("method", cut(r.Method)), slog.String("path", cut(r.URL.Path)),
		slog.Int("status", x.status), slog.Int64("bytes", x.bytes), slog.Float64("seconds", took.Seconds()))
	if q := r.URL.RawQuery; q != "" {
		if !a.query {
			q = withoutValues(q)
		}
		attrs = append(attrs, slog.String("query", cut(q)))
	}
	if !x.begun.IsZero() { // the time until a sandbox was ready
		attrs = append(attrs, slog.Float64("wait_seconds", x.begun.Sub(begin).Seconds()))
	}
	if !x.first.IsZero() { // the time until the answer began
		attrs = append(attrs, slog.Float64("first_byte_seconds", x.first.Sub(begin).Seconds()))
	}
	for _, f := range [...]struct{ name, value string }{
		{"app", app}, {"version", string(x.version)}, {"sandbox", string(x.sandbox)},
	} {
		if f.value != "" {
			attrs = append(attrs, slog.String(f.name, f.value))
		}
	}
	attrs = append(attrs, slog.String("peer", cut(x.client())), slog.String("proto", r.Proto), slog.String("request_id", x.out.requestID))
	if x.upgraded {
		attrs = append(attrs, slog.String("upgrade", cut(x.out.upgrade)))
	}
	if x.aborted {
		attrs = append(attrs, slog.Bool("aborted", true))
	}
	a.logger.LogAttrs(context.Background(), slog.LevelInfo, "", attrs...) // Write has counted what is lost
}

// client returns the address of the client: of the last one in X-Forwarded-For
// that is not a trusted proxy, if the peer is one.
func (x *exchange) client() string {
	peer, _, err := net.SplitHostPort(x.r.RemoteAddr)
	if err != nil {
		peer = x.r.RemoteAddr
	}
	if !x.trusted {
		return peer
	}
	chain := strings.Split(strings.Join(x.r.Header["X-Forwarded-For"], ","), ",")
	for i := len(chain) - 1; i >= 0; i-- {
		ip, err := netip.ParseAddr(strings.TrimSpace(chain[i]))
		if err != nil {
			break
		}
		if peer = ip.String(); !inNetworks(x.in.cfg.TrustedProxies, ip) {
			break
		}
	}
	return peer
}

// withoutValues returns the names of the parameters of a query.
func withoutValues(query string) string {
	var b strings.Builder
	for part := range strings.SplitSeq(query, "&") {
		if b.Len() > 0 {
			b.WriteByte('&')
		}
		name, _, has := strings.Cut(part, "=")
		if !has {
			name = "…" // may be a value
		}
		b.WriteString(name)
		if has {
			b.WriteByte('=')
		}
	}
	return b.String()
}

func cut(s string) string {
	if len(s) > maxAccessField {
		return s[:maxAccessField] + "…"
	}
	return s
}
