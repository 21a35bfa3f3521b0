// Package tracetest is a receiver of OTLP for tests.
package tracetest

import (
	"compress/gzip"
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/protobuf/proto"
)

// Span is one that was received.
type Span struct {
	Name, Trace, ID, Parent string
	Failed                  bool
	Attributes              map[string]string
}

// Receiver keeps the spans that it gets.
type Receiver struct {
	URL string

	mu     sync.Mutex
	spans  []Span
	bodies []string      // what came, before it was decoded
	header []http.Header // of the requests
}

// New returns a Receiver that runs until the test ends.
func New(t testing.TB) *Receiver {
	t.Helper()
	r := &Receiver{}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if err := r.take(req); err != nil {
			t.Errorf("OTLP request: %v", err)
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "application/x-protobuf")
	}))
	t.Cleanup(srv.Close)
	r.URL = srv.URL
	return r
}

func (r *Receiver) take(req *http.Request) error {
	body := io.Reader(req.Body)
	if req.Header.Get("Content-Encoding") == "gzip" {
		z, err := gzip.NewReader(body)
		if err != nil {
			return err
		}
		body = z
	}
	b, err := io.ReadAll(body)
	if err != nil {
		return err
	}
	var m collector.ExportTraceServiceRequest
	if err := proto.Unmarshal(b, &m); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.bodies, r.header = append(r.bodies, string(b)), append(r.header, req.Header.Clone())
	for _, rs := range m.ResourceSpans {
		for _, ss := range rs.ScopeSpans {
			for _, s := range ss.Spans {
				x := Span{
					Name: s.Name, Trace: hex.EncodeToString(s.TraceId), ID: hex.EncodeToString(s.SpanId), Parent: hex.EncodeToString(s.ParentSpanId),
					Failed: s.GetStatus().GetCode() == 2, Attributes: map[string]string{},
				}
				for _, a := range s.Attributes {
					x.Attributes[a.Key] = a.Value.GetStringValue()
					if n := a.Value.GetIntValue(); n != 0 {
						x.Attributes[a.Key] = strconv.FormatInt(n, 10)
					}
				}
				r.spans = append(r.spans, x)
			}
		}
	}
	return nil
}

// Spans returns the spans of a trace, "" for all.
func (r *Receiver) Spans(id string) []Span {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []Span
	for _, s := range r.spans {
		if id == "" || s.Trace == id {
			out = append(out, s)
		}
	}
	return out
}

// Contains reports whether a text is anywhere in what came.
func (r *Receiver) Contains(text string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, b := range r.bodies {
		if strings.Contains(b, text) {
			return true
		}
	}
	return false
}

// Headers returns the values of a header of the requests.
func (r *Receiver) Headers(name string) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []string
	for _, h := range r.header {
		out = append(out, h.Get(name))
	}
	return out
}
