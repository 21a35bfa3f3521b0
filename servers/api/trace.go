package api

import (
	"net/http"

	"miren.dev/runtime/pkg/trace"
)

// trace begins the span of a request, below that which the client sent, and
// answers with its trace context. The span has no path and no query: files and
// tokens are in them.
func (f *face) trace(w http.ResponseWriter, r *http.Request) (*http.Request, func(status int)) {
	if f.s.cfg.Traces == nil {
		return r, func(int) {}
	}
	ctx, span := f.s.cfg.Traces.Begin(r.Context(), r.Header.Get(trace.Header), "HTTP "+f.name, trace.Server)
	w.Header().Set(trace.Header, trace.Parent(ctx))
	span.Text("http.request.method", method(r.Method))
	span.Text("runtime.face", f.name)
	r = r.WithContext(ctx)
	return r, func(status int) {
		if r.Pattern != "" { // of the face's own router
			span.Text("http.route", r.Pattern)
		}
		span.Int("http.response.status_code", int64(status))
		span.Fail(status >= http.StatusInternalServerError)
		span.End(nil)
	}
}

// method returns a method that HTTP knows; others may be anything.
func method(m string) string {
	switch m {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions:
		return m
	}
	return "_OTHER"
}
