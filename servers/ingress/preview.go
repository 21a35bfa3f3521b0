package ingress

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"syscall"
	"time"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/preview"
	"miren.dev/runtime/pkg/schema"
)

const (
	// previewCookie holds the token after a visit with one in the URL.
	previewCookie = "runtime_preview"
	// refusals is how often a port may refuse the connections of one request.
	refusals = 3
	// wakeTimeout bounds one call for the resumption of a sandbox.
	wakeTimeout = 5 * time.Second
	// wakeAgain is the time until the next call after one that was answered, for
	// a sandbox that still does not run.
	wakeAgain = 2 * time.Second
	// wakeFailed is the time until the next call after one that failed.
	wakeFailed = time.Second
)

// servePreview relays the request to a port of a sandbox, which it resumes if it
// is paused. If no answer has begun, it returns the page to send.
func (x *exchange) servePreview(sid schema.ID, port int, app **appState) *page {
	in, client := x.in, x.r.Context()
	tokens := x.tokens()
	var (
		hold     holdState
		admitted *previewState
		refused  int
		stale    int
	)
	defer hold.end()
	for {
		t := in.table.Load()
		g, p := t.preview(sid, port)
		if p == nil || p.expired(time.Now()) {
			return noPreview(port)
		}
		if admitted != p {
			if pg := x.admit(p, tokens); pg != nil || x.started {
				return pg
			}
			if admitted == nil {
				g.state.active.Add(1)
				defer g.state.left()
			}
			admitted, *app = p, g.state.appState
		}
		if g.Ended {
			return sandboxEnded()
		}
		var err error
		if !g.Running {
			if err = hold.enter(in, g.state.appState, nil); err == nil {
				in.wake(client, g.state, p.ID)
				err = hold.wait(client, in, g.state.appState, nil, t.changed, true)
			}
			if pg := x.waited(err); pg != nil || err != nil {
				return pg
			}
			continue
		}
		hold.end()
		err = x.attemptPreview(g, p, port, stale >= maxStale)
		var (
			dial    *dialError
			asStale *staleError
		)
		switch {
		case err == nil, client.Err() != nil, x.started:
			return nil
		case p.ended.Err() != nil, p.expired(time.Now()):
			return noPreview(port)
		case errors.As(err, &asStale):
			stale++
			g.state.stale.Inc()
			continue
		case errors.Is(err, errBodyTooLarge):
			return tooLarge(in.cfg.MaxBodyBytes)
		case errors.As(err, &dial):
			g.state.dial.Inc()
			if errors.Is(err, errRemote) {
				return previewOnOtherNode(port)
			}
			if errors.Is(err, syscall.ECONNREFUSED) {
				if refused++; refused >= refusals {
					return notListening(port)
				}
			}
		default:
			g.state.answer.Inc()
			in.cfg.Logger.Debug("the port of a sandbox did not answer properly", "sandbox", sid, "port", port, "error", err, "request_id", x.out.requestID)
			if x.out.length != 0 || !idempotent(x.r) {
				return noAnswerFrom(port)
			}
		}
		// It may be that the sandbox is being paused, and the table is behind.
		werr := hold.wait(client, in, g.state.appState, nil, t.changed, true)
		if dial == nil && werr == nil {
			if now, _ := in.table.Load().preview(sid, port); now != nil && now.Guest == g.Guest {
				return noAnswerFrom(port)
			}
		}
		if pg := x.waited(werr); pg != nil || werr != nil {
			return pg
		}
	}
}

// waited returns the page for a request that stopped waiting.
func (x *exchange) waited(err error) *page {
	switch {
	case errors.Is(err, errHoldFull):
		return tooManyWaitForSandbox()
	case errors.Is(err, errHoldTimeout):
		return notResumed(max(x.in.cfg.HoldTimeout, 0).String())
	}
	return nil
}

// attemptPreview sends the request to the sandbox. It ends when the preview does.
func (x *exchange) attemptPreview(g *guest, p *previewState, port int, fresh bool) error {
	was := x.r
	ctx, cancel := context.WithCancel(was.Context())
	defer cancel()
	if p.Expires != 0 {
		ctx, cancel = context.WithDeadline(ctx, time.UnixMilli(p.Expires))
		defer cancel()
	}
	defer context.AfterFunc(p.ended, cancel)()
	x.r = was.WithContext(ctx)
	defer func() { x.r = was }()
	b := x.in.registry.guestBackend(g, port, x.in.dialer(g, port))
	g.state.inflight.Inc()
	err := x.attempt(b, fresh)
	g.state.inflight.Dec()
	var dial *dialError
	x.in.registry.leave(g, b, !errors.As(err, &dial))
	return err
}

// dialer connects to a port of a sandbox: over the network, and if that is
// refused through the server, which reaches processes that listen on the
// sandbox's loopback address only. A preview of every port does not open these.
func (in *Ingress) dialer(g *guest, port int) func(context.Context, string) (net.Conn, error) {
	return func(ctx context.Context, address string) (net.Conn, error) {
		err := error(syscall.ECONNREFUSED)
		if g.Address != "" {
			var c net.Conn
			if c, err = in.registry.dial(ctx, address); err == nil || !errors.Is(err, syscall.ECONNREFUSED) {
				return c, err
			}
		}
		_, p := in.table.Load().preview(g.ID, port)
		if in.cfg.Dial == nil || p == nil || p.Port == 0 {
			if g.Remote {
				return nil, errRemote
			}
			return nil, err
		}
		c, derr := in.cfg.Dial(ctx, p.ID, port)
		if derr != nil {
			in.cfg.Logger.Debug("the server does not connect to a preview", "preview", p.ID, "error", derr)
			if g.Remote && errs.Is(derr, errs.Unavailable) {
				return nil, errRemote
			}
			return nil, err
		}
		return c, nil
	}
}

// errRemote says that a sandbox is on another node, to which the server does not connect.
var errRemote = errors.New("the sandbox is on another node")

// left counts the end of a request.
func (g *guestState) left() {
	g.last.Store(time.Now().UnixNano())
	g.active.Add(-1)
}

// wake asks for the resumption of a sandbox, unless another request does or has
// just done so.
func (in *Ingress) wake(ctx context.Context, g *guestState, pid schema.ID) {
	if in.cfg.Wake == nil || time.Now().UnixNano() < g.nextWake.Load() || !g.waking.CompareAndSwap(false, true) {
		return
	}
	defer g.waking.Store(false)
	ctx, cancel := context.WithTimeout(ctx, wakeTimeout)
	defer cancel()
	again := wakeAgain
	if err := in.cfg.Wake(ctx, pid); err != nil {
		again = wakeFailed
		in.cfg.Logger.Warn("a sandbox cannot be resumed for its preview", "preview", pid, "error", err)
	}
	g.nextWake.Store(time.Now().Add(again).UnixNano())
}

// Places where a request has a token.
type place int

const (
	inQuery place = iota
	inHeader
	inCookie
)

type token struct {
	value string
	place place
	name  string // of the header
}

// maxTokens bounds the tokens of a request that are looked at.
const maxTokens = 8

// tokens returns what may be tokens of the request, in the order in which they
// are tried.
func (x *exchange) tokens() []token {
	var out []token
	if strings.Contains(x.r.URL.RawQuery, preview.Parameter) {
		if v := x.r.URL.Query().Get(preview.Parameter); v != "" {
			out = append(out, token{v, inQuery, ""})
		}
	}
	for _, name := range []string{"Authorization", "X-Access-Token", "E2b-Traffic-Access-Token"} {
		v := x.r.Header.Get(name)
		if name == "Authorization" {
			scheme, rest, _ := strings.Cut(v, " ")
			if !strings.EqualFold(scheme, "Bearer") {
				continue
			}
			v = strings.TrimSpace(rest)
		}
		if v != "" {
			out = append(out, token{v, inHeader, name})
		}
	}
	for _, c := range x.r.CookiesNamed(previewCookie) {
		out = append(out, token{c.Value, inCookie, previewCookie})
	}
	return out[:min(len(out), maxTokens)]
}

// admit checks that the request may use a preview, and removes what is for the
// ingress only from it. It returns the page of a refusal. A visit with a token in
// its URL is redirected to the URL without.
func (x *exchange) admit(p *previewState, tokens []token) *page {
	var refusal error
	for _, tok := range tokens {
		end, err := preview.Verify(p.key, tok.value, time.Now(), string(p.ID), string(p.Sandbox))
		if err != nil {
			if refusal == nil || errs.Is(err, errs.DeadlineExceeded) {
				refusal = err
			}
			continue
		}
		switch tok.place {
		case inQuery:
			x.removeParameter()
			if m := x.r.Method; x.out.upgrade == "" && (m == http.MethodGet || m == http.MethodHead) {
				x.remember(tok.value, end)
				return nil
			}
		case inHeader:
			x.r.Header.Del(tok.name)
		}
		return nil
	}
	switch {
	case p.Public:
		return nil
	case errs.Is(refusal, errs.DeadlineExceeded):
		return tokenExpired()
	case refusal != nil:
		return tokenInvalid()
	}
	return tokenRequired()
}

// removeParameter removes the token from the URL.
func (x *exchange) removeParameter() {
	u := *x.r.URL
	var keep []string
	for kv := range strings.SplitSeq(u.RawQuery, "&") {
		name, _, _ := strings.Cut(kv, "=")
		if name, err := url.QueryUnescape(name); err != nil || name != preview.Parameter {
			keep = append(keep, kv)
		}
	}
	u.RawQuery = strings.Join(keep, "&")
	x.r.URL, x.r.RequestURI = &u, u.RequestURI()
}

// remember gives the client the token as a cookie of this host and sends it to
// the URL without the token.
func (x *exchange) remember(tok string, end time.Time) {
	c := &http.Cookie{Name: previewCookie, Value: tok, Path: "/", HttpOnly: true, SameSite: http.SameSiteLaxMode}
	if !end.IsZero() {
		c.MaxAge = max(int(time.Until(end).Seconds()), 1)
	}
	c.Secure = x.isSecure()
	h := x.w.Header()
	h.Set("Set-Cookie", c.String())
	h.Set("Cache-Control", "no-store")
	h.Set("Referrer-Policy", "no-referrer")
	// One slash only: //host would be another host.
	h.Set("Location", "/"+strings.TrimLeft(x.r.URL.RequestURI(), `/\`))
	h.Set("Content-Length", "0")
	x.started, x.status = true, http.StatusSeeOther
	x.w.WriteHeader(http.StatusSeeOther)
}

func noPreview(port int) *page {
	return &page{Status: http.StatusNotFound, Code: "no_preview", Title: "There is no preview at this address",
		Detail: "Port " + strconv.Itoa(port) + " of this sandbox is not open, or the preview has ended.",
		Hint:   "If the sandbox is yours: `r sandbox preview ID " + strconv.Itoa(port) + "` opens it."}
}

func tokenRequired() *page {
	return &page{Status: http.StatusUnauthorized, Code: "token_required", Title: "This preview needs a token", challenge: true,
		Detail: "Send it in the header Authorization: Bearer TOKEN or X-Access-Token, or open a signed URL.",
		Hint:   "If the sandbox is yours: `r preview url` makes one."}
}

func tokenInvalid() *page {
	return &page{Status: http.StatusUnauthorized, Code: "token_invalid", Title: "The token does not open this preview", challenge: true,
		Detail: "It is for another preview, or for one that was deleted since.", Hint: "If the sandbox is yours: `r preview url` makes a new URL."}
}

func tokenExpired() *page {
	return &page{Status: http.StatusUnauthorized, Code: "token_expired", Title: "The token has expired", challenge: true,
		Detail: "The URL or the token was valid for a limited time, which is over.", Hint: "If the sandbox is yours: `r preview url` makes a new URL."}
}

func sandboxEnded() *page {
	return &page{Status: http.StatusGone, Code: "sandbox_ended", Title: "This sandbox has ended", Detail: "Nothing answers here any more.",
		Hint: "If the sandbox is yours: `r sandbox show` says why."}
}

func notResumed(waited string) *page {
	return &page{Status: http.StatusServiceUnavailable, Code: "not_running", Title: "This sandbox does not run",
		Detail: "It did not run, or could not be reached, within " + waited + ".",
		Hint:   "Try again in a moment. If the sandbox is yours: `r sandbox show` says what it is doing.", retryAfter: 5}
}

func tooManyWaitForSandbox() *page {
	return &page{Status: http.StatusServiceUnavailable, Code: "too_many_waiting", Title: "This sandbox does not run",
		Detail: "Too many requests wait for it already.", Hint: "Try again in a moment.", retryAfter: 5}
}

func previewOnOtherNode(port int) *page {
	return &page{Status: http.StatusServiceUnavailable, Code: "on_other_node", Title: "This sandbox runs on another machine",
		Detail: "This machine does not reach port " + strconv.Itoa(port) + " of it now.",
		Hint: "If the sandbox is yours: open the preview at the machine that runs it. On a runner, a preview of this port alone (`r sandbox preview ID " +
			strconv.Itoa(port) + "`) is reached while the runner is connected.", retryAfter: 5}
}

func notListening(port int) *page {
	return &page{Status: http.StatusBadGateway, Code: "not_listening", Title: "Nothing listens on port " + strconv.Itoa(port),
		Detail: "The sandbox runs, and refuses connections to the port.",
		Hint:   "If the sandbox is yours: `r sandbox ports` lists the ports on which processes listen."}
}

func noAnswerFrom(port int) *page {
	return &page{Status: http.StatusBadGateway, Code: "bad_answer", Title: "Port " + strconv.Itoa(port) + " did not answer properly",
		Detail: "The connection to the sandbox broke, or what it sent is not HTTP."}
}
