package ingress

import (
	"context"
	"errors"
	"net/http"
	"os"
	"time"

	"miren.dev/runtime/domain/sandboxes"
	"miren.dev/runtime/pkg/errs"
)

// redial is how long a request waits, after it could reach none of the
// sandboxes, before it tries them again. A new table ends the wait earlier.
const redial = 200 * time.Millisecond

// maxStale bounds the attempts on reused connections that turn out broken;
// after it a fresh connection is used.
const maxStale = 2

var errClientGone = errors.New("the client went away")

// ServeHTTP routes one request to a sandbox.
func (in *Ingress) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	begin := time.Now()
	r, opened, known := openStream(r)
	x := &exchange{in: in, w: w, r: r, stream: opened, out: prepare(r), trusted: isTrusted(in.cfg.TrustedProxies, r.RemoteAddr),
		maxBody: in.cfg.MaxBodyBytes, answerWithin: in.cfg.ResponseHeaderTimeout}
	app := in.metrics.unknown
	defer func() {
		took := time.Since(begin)
		app.ended(x.status, r.ProtoMajor, took)
		x.stats.ended(x.status, took)
		if in.access != nil {
			in.access.request(x, app.name, begin, took)
		}
		if x.aborted {
			panic(http.ErrAbortHandler) // the client must not mistake a part for the whole answer
		}
	}()
	if !known {
		x.fail(&page{Status: http.StatusNotImplemented, Code: "protocol", Title: "Unknown protocol", Detail: "Of the protocols that CONNECT may ask for, only websocket is supported."})
		return
	}
	if r.Method == http.MethodConnect {
		x.fail(&page{Status: http.StatusMethodNotAllowed, Code: "method", Title: "This is not a forward proxy", Detail: "CONNECT is not supported."})
		return
	}
	if !wellFormed(r) {
		x.fail(malformed())
		return
	}
	if x.answerChallenge() || x.checkSecure() {
		return
	}
	if limit := x.maxBody; limit > 0 && x.out.length > limit {
		x.fail(tooLarge(limit))
		return
	}
	var p *page
	if sid, port, ok := in.previewHost(normalHost(r.Host)); ok {
		p = x.servePreview(sid, port, &app)
	} else {
		p = x.route(&app)
	}
	if p != nil {
		x.fail(p)
	}
}

// fail sends p if no answer has begun.
func (x *exchange) fail(p *page) {
	if x.started {
		return
	}
	p.RequestID, p.own = x.out.requestID, x.gate.page(p)
	x.started, x.status, x.first = true, p.Status, time.Now()
	p.closes = p.closes || x.in.draining.Load()
	x.announceHTTP3(x.w.Header())
	p.write(x.w, x.r)
}

// route finds a sandbox and relays the request. If no answer has begun, it
// returns the page to send.
func (x *exchange) route(app **appState) *page {
	in, host, path := x.in, normalHost(x.r.Host), cleanPath(x.r.URL.Path)
	var (
		hold      holdState
		tried     []*backend
		elsewhere int // of tried: those that another server reaches
		stale     int
	)
	defer hold.end()
	for {
		t := in.table.Load()
		tg := t.match(host, path, in.cfg.LocalDomains)
		if tg == nil {
			return unknownHost(host)
		}
		*app, x.stats = tg.app, tg.stats
		if tg.closed {
			return noRoute(tg.app.name)
		}
		if x.evades(t, host, tg) {
			return ambiguous()
		}
		if tg.gate != nil && tg.gate != x.gate {
			if p := x.enter(tg.gate); p != nil {
				return p
			}
		}
		if tg.away != "" {
			return maintenance(tg.app.name, tg.away)
		}
		b, ld := x.pick(tg, tried)
		if b == nil {
			if tg.version == "" && !tg.deploying {
				return notDeployed(tg.app.name)
			}
			if tg.missing && !tg.deploying {
				return noService(tg.app.name, tg.service)
			}
			if tg.remote() || elsewhere > 0 && elsewhere == len(tried) { // no wait changes it: whatever is in front may ask another node
				return onOtherNode(tg.app.name, tg.service)
			}
			// No sandbox is left to try. Begin again after a moment: a sandbox
			// may have started, and the table may be behind.
			retry := len(tried) > 0
			tried, elsewhere = tried[:0], 0
			switch err := hold.wait(x.r.Context(), in, tg.app, ld, t.changed, retry); {
			case errors.Is(err, errHoldFull):
				return tooManyWait(tg.app.name)
			case errors.Is(err, errHoldTimeout):
				return notReady(tg.app.name, tg.service, max(in.cfg.HoldTimeout, 0).String(), in.follower.away())
			case err != nil:
				return nil // the client disconnected
			}
			continue
		}
		b.inflight.Add(1)
		if in.table.Load() != t {
			// A newer table arrived after this request chose its sandbox and
			// before it counted itself.
			b.inflight.Add(-1)
			continue
		}
		hold.end()
		ld.requests.Add(1)
		tg.app.inflight.Inc()
		tg.stats.add(1)
		x.version = b.Version
		err := x.attempt(b, stale >= maxStale)
		tg.app.inflight.Dec()
		tg.stats.add(-1)
		b.inflight.Add(-1)
		if err == nil {
			return nil
		}
		again, p := x.judge(tg, err)
		if !again {
			return p
		}
		if asStale := (*staleError)(nil); errors.As(err, &asStale) {
			stale++
		} else {
			tried = append(tried, b)
			if onOtherServer(err) {
				elsewhere++
			}
		}
	}
}

// onOtherServer reports whether an error says that another server reaches the runner of a sandbox.
func onOtherServer(err error) bool { return errs.Detail(err, sandboxes.OnOtherServer) != "" }

// judge decides what follows a failed attempt: another attempt, or a page.
func (x *exchange) judge(tg *target, err error) (again bool, _ *page) {
	log := x.in.cfg.Logger
	var (
		dial   *dialError
		stale  *staleError
		client *clientReadError
	)
	switch {
	case errors.As(err, &client) && errors.Is(err, os.ErrDeadlineExceeded): // which also ends the request's context
		return false, tooSlowUpload(x.in.cfg.BodyTimeout)
	case errors.As(err, &client), x.r.Context().Err() != nil:
		return false, nil
	case errors.As(err, &dial):
		tg.app.dial.Inc()
		log.Debug("sandbox cannot be reached", "app", tg.app.name, "error", err)
		return true, nil
	case errors.As(err, &stale):
		tg.app.stale.Inc()
		return true, nil
	case errors.Is(err, errBodyTooLarge):
		return false, tooLarge(x.maxBody)
	}
	tg.app.answer.Inc()
	log.Warn("sandbox did not answer properly", "app", tg.app.name, "version", tg.version, "error", err, "begun", x.started, "request_id", x.out.requestID)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return false, tooSlow(tg.app.name)
	}
	return false, badAnswer(tg.app.name)
}

var (
	errHoldFull    = errors.New("too many requests wait")
	errHoldTimeout = errors.New("waited for too long")
)

// holdState is the wait of one request. Its total time is bounded, however
// often it is interrupted.
type holdState struct {
	timer *time.Timer
	app   *appState // app in which the waiting request is counted
	load  *load     // version and service in which it is counted; nil: none
}

// wait blocks until a newer table is installed or, if retry is set, for at most
// redial.
func (h *holdState) wait(ctx context.Context, in *Ingress, app *appState, ld *load, changed <-chan struct{}, retry bool) error {
	if err := h.enter(in, app, ld); err != nil {
		return err
	}
	var moment <-chan time.Time
	if retry {
		moment = time.After(redial)
	}
	select {
	case <-changed:
		return nil
	case <-moment:
		return nil
	case <-h.timer.C:
		return errHoldTimeout
	case <-ctx.Done():
		return errClientGone
	case <-in.stopping:
		return errHoldTimeout
	}
}

// enter counts the request as one that waits. The first one for a version and service wakes it, if it sleeps.
func (h *holdState) enter(in *Ingress, app *appState, ld *load) error {
	if h.timer == nil {
		h.timer = time.NewTimer(in.cfg.HoldTimeout)
	}
	if h.app == app && h.load == ld {
		return nil
	}
	h.leave()
	if app.waiting.Add(1) > int64(in.cfg.HoldLimit) {
		app.waiting.Add(-1)
		return errHoldFull
	}
	app.held.Inc()
	h.app, h.load = app, ld
	if ld != nil && ld.held.Add(1) == 1 {
		in.registry.wakes.add()
	}
	return nil
}

func (h *holdState) leave() {
	if h.app != nil {
		h.app.waiting.Add(-1)
		h.app.held.Dec()
		if h.load != nil {
			h.load.held.Add(-1)
		}
		h.app, h.load = nil, nil
	}
}

// end stops the wait; the time waited so far stays counted.
func (h *holdState) end() { h.leave() }
