package trace_test

import (
	"encoding/hex"
	"fmt"
	"log/slog"
	"testing"
	"time"

	common "go.opentelemetry.io/proto/otlp/common/v1"
	traces "go.opentelemetry.io/proto/otlp/trace/v1"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/trace"
	"miren.dev/runtime/pkg/trace/otlp"
	"miren.dev/runtime/testsupport/otelcoltest"
	"miren.dev/runtime/testsupport/wait"
)

func toCollector(t *testing.T, c *otelcoltest.Collector) *otlp.Exporter {
	t.Helper()
	e, err := otlp.New(t.Context(), otlp.Config{
		Endpoint: "http://" + c.Address, Sample: 1, Service: "runtime", ID: "inst", Version: "1.2.3", Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	return e
}

// spans returns the spans that a collector received, by their names, and the resource of the last.
func spans(t *testing.T, c *otelcoltest.Collector) (byName map[string][]*traces.Span, of map[string]string) {
	t.Helper()
	byName = map[string][]*traces.Span{}
	for _, req := range c.Traces(t) {
		for _, r := range req.ResourceSpans {
			of = attributesOf(r.Resource.GetAttributes())
			for _, scope := range r.ScopeSpans {
				for _, s := range scope.Spans {
					byName[s.Name] = append(byName[s.Name], s)
				}
			}
		}
	}
	return byName, of
}

func attributesOf(list []*common.KeyValue) map[string]string {
	out := map[string]string{}
	for _, a := range list {
		switch v := a.Value.GetValue().(type) {
		case *common.AnyValue_StringValue:
			out[a.Key] = v.StringValue
		case *common.AnyValue_IntValue:
			out[a.Key] = fmt.Sprintf("int %d", v.IntValue)
		default:
			out[a.Key] = fmt.Sprintf("%T", v)
		}
	}
	return out
}

// TestCollector: an OpenTelemetry Collector has the trace that a caller began with its ids, and of each span its times,
// kind, attributes and status.
func TestCollector(t *testing.T) {
	c := otelcoltest.Start(t)
	e := toCollector(t, c)
	const id, caller = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
	before := time.Now()
	ctx, root := e.Tracer().Begin(t.Context(), "00-"+id+"-"+caller+"-01", "HTTP rest", trace.Server)
	root.Text("http.route", "/api/v1/apps/{app}")
	root.Int("http.response.status_code", 404)
	child, span := trace.Start(ctx, "store get", trace.Client)
	parent := trace.Parent(child)
	span.Text("runtime.id", "shop-\xff-日本")
	span.End(errs.New(errs.NotFound, "hunter2"))
	root.End(nil)
	after := time.Now()
	if err := e.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	got, of := spans(t, c)
	if len(got["HTTP rest"]) != 1 || len(got["store get"]) != 1 || len(got) != 2 {
		t.Fatalf("spans: %v", got)
	}
	if want := map[string]string{"service.name": "runtime", "service.version": "1.2.3", "service.instance.id": "inst"}; fmt.Sprint(of) != fmt.Sprint(want) {
		t.Errorf("resource %v, want %v", of, want)
	}
	r, s := got["HTTP rest"][0], got["store get"][0]
	if hex.EncodeToString(r.TraceId) != id || hex.EncodeToString(r.ParentSpanId) != caller || r.Kind != traces.Span_SPAN_KIND_SERVER {
		t.Errorf("root: trace %x, parent %x, %v", r.TraceId, r.ParentSpanId, r.Kind)
	}
	if want := fmt.Sprintf("00-%x-%x-01", s.TraceId, s.SpanId); want != parent {
		t.Errorf("the callee was told %s, the span is %s", parent, want)
	}
	if hex.EncodeToString(s.TraceId) != id || hex.EncodeToString(s.ParentSpanId) != hex.EncodeToString(r.SpanId) || s.Kind != traces.Span_SPAN_KIND_CLIENT {
		t.Errorf("child: trace %x, parent %x of %x, %v", s.TraceId, s.ParentSpanId, r.SpanId, s.Kind)
	}
	if want := map[string]string{"http.route": "/api/v1/apps/{app}", "http.response.status_code": "int 404"}; fmt.Sprint(attributesOf(r.Attributes)) != fmt.Sprint(want) {
		t.Errorf("root: %v, want %v", r.Attributes, want)
	}
	if want := map[string]string{"runtime.id": "shop--日本", "error.type": "not_found"}; fmt.Sprint(attributesOf(s.Attributes)) != fmt.Sprint(want) {
		t.Errorf("child: %v, want %v", s.Attributes, want)
	}
	if r.Status.GetCode() != traces.Status_STATUS_CODE_UNSET || s.Status.GetCode() != traces.Status_STATUS_CODE_ERROR || s.Status.GetMessage() != "not_found" {
		t.Errorf("status %v and %v", r.Status, s.Status)
	}
	for _, x := range []*traces.Span{r, s} {
		if from, to := time.Unix(0, int64(x.StartTimeUnixNano)), time.Unix(0, int64(x.EndTimeUnixNano)); from.Before(before) || to.After(after) || to.Before(from) {
			t.Errorf("%s from %v to %v, which is not within %v and %v", x.Name, from, to, before, after)
		}
	}
}

// TestRestartedCollector: spans of the time in which a collector is restarted reach it once.
func TestRestartedCollector(t *testing.T) {
	c := otelcoltest.Start(t)
	e := toCollector(t, c)
	emit := func(from, to int) {
		for i := from; i < to; i++ {
			_, s := e.Tracer().Begin(t.Context(), "", fmt.Sprintf("span %d", i), trace.Internal)
			s.End(nil)
		}
	}
	for first := 0; ; first += 200 {
		emit(first, first+100)
		if err := e.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		c.Kill()
		away := time.Now()
		emit(first+100, first+200)
		flushed := make(chan error, 1)
		go func() { flushed <- e.Flush(t.Context()) }()
		c.Run(t)
		short := time.Since(away) < 10*time.Second // else the machine is so busy that the exporter may give up
		if err := wait.Receive(t, "the spans are sent", flushed); err != nil && short {
			t.Fatal(err)
		}
		if !short {
			continue
		}
		got, _ := spans(t, c)
		for i := first; i < first+200; i++ {
			if n := len(got[fmt.Sprintf("span %d", i)]); n != 1 {
				t.Errorf("span %d is there %d times", i, n)
			}
		}
		return
	}
}
