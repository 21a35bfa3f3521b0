package s3test

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Fault is what goes wrong with one request; the zero value is nothing. What
// is not certain to leave the server untouched happens after it has answered.
type Fault struct {
	Status int           // answer this, with Code, instead of asking the server
	Code   string        // S3's code of Status
	Reset  bool          // reset the connection instead of asking the server
	Before func()        // run this before the server is asked
	Slow   time.Duration // answer this much later
	Lose   bool          // the server did it; reset the connection instead of answering
	Silent bool          // the server did it; answer nothing until the client gives up
	Cut    bool          // send half of the body, then close the connection
	Stale  bool          // a GET answers what the object was before its last replacement
}

// Request is what a hook sees.
type Request struct {
	Method string
	Key    string // with the store's prefix; of a list its prefix
	List   bool
	Range  bool
	Put    string // "create", "replace" or ""
}

// Proxy stands between a store and its server.
type Proxy struct {
	URL    string
	target string
	client *http.Transport
	hook   atomic.Pointer[func(Request) Fault]
	done   chan struct{}

	mu       sync.Mutex
	now, was map[string]copyOf

	counted sync.Map // of *atomic.Int64, by kind of fault
}

type copyOf struct {
	body []byte
	etag string
}

// NewProxy starts a proxy before the server at target. It ends with the test.
func NewProxy(t testing.TB, target string) *Proxy {
	p := &Proxy{target: strings.TrimPrefix(target, "http://"), done: make(chan struct{}), now: map[string]copyOf{}, was: map[string]copyOf{},
		client: &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 64}}
	p.SetHook(nil)
	server := httptest.NewServer(p)
	p.URL = server.URL
	t.Cleanup(func() {
		close(p.done)
		server.CloseClientConnections()
		server.Close()
		p.client.CloseIdleConnections()
	})
	return p
}

// SetHook changes what goes wrong from now on; nil is nothing.
func (p *Proxy) SetHook(f func(Request) Fault) {
	if f == nil {
		f = func(Request) Fault { return Fault{} }
	}
	p.hook.Store(&f)
}

// Count is how many faults of a kind there were: "status", "reset", "lose",
// "silent", "cut", "stale", "slow", "before".
func (p *Proxy) Count(kind string) int64 {
	v, ok := p.counted.Load(kind)
	if !ok {
		return 0
	}
	return v.(*atomic.Int64).Load()
}

func (p *Proxy) count(kind string) {
	v, _ := p.counted.LoadOrStore(kind, &atomic.Int64{})
	v.(*atomic.Int64).Add(1)
}

func describe(r *http.Request) Request {
	q := Request{Method: r.Method, List: r.URL.Query().Has("list-type"), Range: r.Header.Get("Range") != ""}
	_, q.Key, _ = strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	switch {
	case q.List:
		q.Key = r.URL.Query().Get("prefix")
	case r.Method == http.MethodPut && r.Header.Get("If-Match") != "":
		q.Put = "replace"
	case r.Method == http.MethodPut:
		q.Put = "create"
	}
	return q
}

// ServeHTTP implements [http.Handler].
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	q := describe(r)
	f := (*p.hook.Load())(q)
	switch {
	case f.Reset:
		p.count("reset")
		reset(w)
		return
	case f.Status != 0:
		p.count("status")
		io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/xml")
		w.WriteHeader(f.Status)
		fmt.Fprintf(w, `<?xml version="1.0" encoding="UTF-8"?><Error><Code>%s</Code><Message>injected</Message></Error>`, f.Code)
		return
	}
	if f.Before != nil {
		p.count("before")
		f.Before()
	}
	status, header, body, err := p.ask(r, q)
	if err != nil {
		reset(w)
		return
	}
	if f.Slow > 0 {
		p.count("slow")
		select {
		case <-time.After(f.Slow):
		case <-r.Context().Done():
		case <-p.done:
		}
	}
	if old, ok := p.previous(q.Key); f.Stale && ok && r.Method == http.MethodGet && !q.Range && !q.List && status == http.StatusOK {
		p.count("stale")
		body = old.body
		header.Set("ETag", old.etag)
		header.Set("Content-Length", fmt.Sprint(len(body)))
	}
	switch {
	case f.Lose:
		p.count("lose")
		reset(w)
		return
	case f.Silent:
		p.count("silent")
		select {
		case <-r.Context().Done():
		case <-p.done:
		}
		return
	}
	for k, v := range header {
		w.Header()[k] = v
	}
	w.WriteHeader(status)
	if f.Cut && len(body) > 1 {
		p.count("cut")
		w.Write(body[:len(body)/2])
		panic(http.ErrAbortHandler)
	}
	w.Write(body)
}

// ask sends the request on to the server as it was signed.
func (p *Proxy) ask(r *http.Request, q Request) (int, http.Header, []byte, error) {
	sent, err := io.ReadAll(r.Body)
	if err != nil {
		return 0, nil, nil, err
	}
	out := r.Clone(r.Context())
	out.URL.Scheme, out.URL.Host, out.RequestURI = "http", p.target, ""
	out.Header.Del("Expect")
	out.Body, out.ContentLength = io.NopCloser(bytes.NewReader(sent)), int64(len(sent))
	resp, err := p.client.RoundTrip(out)
	if err != nil {
		return 0, nil, nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, nil, nil, err
	}
	if r.Method == http.MethodHead {
		body = nil
	}
	if q.Put != "" && resp.StatusCode == http.StatusOK {
		p.mu.Lock()
		if old, ok := p.now[q.Key]; ok {
			p.was[q.Key] = old
		}
		if q.Put == "replace" || len(sent) < 1<<16 { // segments are never replaced
			p.now[q.Key] = copyOf{sent, resp.Header.Get("ETag")}
		}
		p.mu.Unlock()
	}
	return resp.StatusCode, resp.Header, body, nil
}

func (p *Proxy) previous(key string) (copyOf, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c, ok := p.was[key]
	return c, ok
}

// reset closes the client's connection the hard way.
func reset(w http.ResponseWriter) {
	conn, _, err := w.(http.Hijacker).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		tcp.SetLinger(0)
	}
	conn.Close()
}
