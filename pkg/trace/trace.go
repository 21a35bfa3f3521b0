// Package trace records what the parts of the system do for a request as spans
// of OpenTelemetry. It knows no exporter: that is pkg/trace/otlp, which only
// servers link.
//
// A Tracer begins traces, where a request enters a process: at an HTTP face, at
// an RPC server, in a controller. Everything below calls Start, which adds a span
// to the trace of its context, and does nothing without one. A nil Tracer, and so
// everything below it, records nothing: the cost is a look into the context.
//
// # What a span says
//
// The name of the operation, ids of entities, numbers, and the class of an error.
// Never what users sent or programs printed: no environment, command, code, path,
// output or text of an error. Whoever adds an attribute keeps to that.
package trace

import (
	"context"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"miren.dev/runtime/pkg/errs"
)

// scope names the instrumentation.
const scope = "miren.dev/runtime"

// maxText is the longest attribute, in bytes.
const maxText = 256

// Header is the name of the HTTP header with a trace context of W3C.
const Header = "traceparent"

// Kind says which side of a call a span is.
type Kind = trace.SpanKind

// Kinds of spans.
const (
	Internal = trace.SpanKindInternal
	Server   = trace.SpanKindServer
	Client   = trace.SpanKindClient
)

// Tracer begins traces. A nil Tracer begins none. It is safe for concurrent use.
type Tracer struct{ t trace.Tracer }

// New returns a Tracer of a provider.
func New(p trace.TracerProvider) *Tracer { return &Tracer{p.Tracer(scope)} }

// Begin begins a span below the trace context that a caller sent (W3C
// traceparent), or a new trace if that is empty or malformed. The span must be
// ended.
func (t *Tracer) Begin(ctx context.Context, parent, name string, kind Kind) (context.Context, Span) {
	if t == nil {
		return ctx, Span{}
	}
	if parent != "" {
		ctx = propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{Header: parent})
	}
	ctx, s := t.t.Start(ctx, name, trace.WithSpanKind(kind))
	return ctx, Span{s}
}

// Start begins a span below that of ctx, which must be ended. Without one, or if
// the trace is not recorded, it returns ctx and a Span that does nothing.
func Start(ctx context.Context, name string, kind Kind) (context.Context, Span) {
	above := trace.SpanFromContext(ctx)
	if !above.IsRecording() {
		return ctx, Span{}
	}
	ctx, s := above.TracerProvider().Tracer(scope).Start(ctx, name, trace.WithSpanKind(kind))
	return ctx, Span{s}
}

// Parent returns the trace context of ctx for a callee or an answer; "" if it has
// none.
func Parent(ctx context.Context) string {
	if !trace.SpanContextFromContext(ctx).IsValid() {
		return ""
	}
	c := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, c)
	return c[Header]
}

// Span is one operation. The zero Span does nothing.
type Span struct{ s trace.Span }

// Recording reports whether what is set is recorded.
func (s Span) Recording() bool { return s.s != nil && s.s.IsRecording() }

// Text sets an attribute, of which at most the first 256 bytes are kept. It must
// be neither secret nor content; see the package.
func (s Span) Text(key, value string) {
	if value != "" && s.Recording() {
		// OTLP has valid UTF-8 only: any other text would cost the whole batch.
		s.s.SetAttributes(attribute.String(key, strings.ToValidUTF8(value[:min(len(value), maxText)], "")))
	}
}

// Int sets an attribute.
func (s Span) Int(key string, value int64) {
	if s.Recording() {
		s.s.SetAttributes(attribute.Int64(key, value))
	}
}

// Fail marks the span as failed, where there is no error but an answer.
func (s Span) Fail(failed bool) {
	if failed && s.Recording() {
		s.s.SetStatus(codes.Error, "")
	}
}

// End ends the span. Of an error it records the class, not the text.
func (s Span) End(err error) {
	if s.s == nil {
		return
	}
	if err != nil && s.s.IsRecording() {
		class := string(errs.ClassOf(err))
		s.s.SetStatus(codes.Error, class)
		s.s.SetAttributes(attribute.String("error.type", class))
	}
	s.s.End()
}
