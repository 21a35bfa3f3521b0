package trace_test

import (
	"context"
	"log/slog"
	"os"
	"strings"
	"testing"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/trace"
	"miren.dev/runtime/pkg/trace/otlp"
	"miren.dev/runtime/pkg/trace/tracetest"
)

func open(t testing.TB, sample float64) (*otlp.Exporter, *tracetest.Receiver) {
	t.Helper()
	got := tracetest.New(t)
	e, err := otlp.New(t.Context(), otlp.Config{Endpoint: got.URL, Sample: sample, Service: "test", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	return e, got
}

func TestErrorsAreRecordedByClass(t *testing.T) {
	e, got := open(t, 1)
	ctx, root := e.Tracer().Begin(t.Context(), "", "root", trace.Server)
	_, span := trace.Start(ctx, "child", trace.Internal)
	span.Text("long", strings.Repeat("x", 1000))
	span.End(errs.New(errs.NotFound, "there is no hunter2"))
	root.End(nil)
	if err := e.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	all := got.Spans("")
	if len(all) != 2 || !all[0].Failed || all[0].Attributes["error.type"] != "not_found" || all[0].Parent != all[1].ID || len(all[0].Attributes["long"]) != 256 {
		t.Errorf("got %+v", all)
	}
	if got.Contains("hunter2") {
		t.Error("the text of an error was sent")
	}
}

// TestTextIsUTF8: an attribute that is cut within a character, or is no UTF-8,
// costs neither its span nor others.
func TestTextIsUTF8(t *testing.T) {
	e, got := open(t, 1)
	_, span := e.Tracer().Begin(t.Context(), "", "root", trace.Server)
	span.Text("cut", strings.Repeat("€", 100))
	span.Text("bytes", "a\xffb")
	span.End(nil)
	if err := e.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	all := got.Spans("")
	if len(all) != 1 || all[0].Attributes["cut"] != strings.Repeat("€", 85) || all[0].Attributes["bytes"] != "ab" {
		t.Errorf("got %+v", all)
	}
}

func TestNothingWithoutATrace(t *testing.T) {
	var none *trace.Tracer
	ctx, span := none.Begin(t.Context(), "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "root", trace.Server)
	ctx, child := trace.Start(ctx, "child", trace.Internal)
	child.Text("a", "b")
	child.End(nil)
	span.End(nil)
	if ctx != t.Context() || trace.Parent(ctx) != "" {
		t.Errorf("the context has the trace %q", trace.Parent(ctx))
	}
}

// TestCollectorThatIsAway holds up nobody.
func TestCollectorThatIsAway(t *testing.T) {
	e, err := otlp.New(t.Context(), otlp.Config{Endpoint: "http://127.0.0.1:1", Sample: 1, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	for range 10_000 { // more than the queue has room for
		_, span := e.Tracer().Begin(t.Context(), "", "root", trace.Server)
		span.End(nil)
	}
	e.Close()
}

func TestConfigurationIsChecked(t *testing.T) {
	file := t.TempDir() + "/headers"
	if err := os.WriteFile(file, []byte("# comment\n\nX-Key: k\nhunter2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, cfg := range []otlp.Config{{Endpoint: "host:1"}, {Endpoint: "ftp://host"}, {Endpoint: "http://host", HeadersFile: "/none"}, {Endpoint: "http://host", HeadersFile: file}} {
		cfg.Logger = slog.New(slog.DiscardHandler)
		_, err := otlp.New(t.Context(), cfg)
		if !errs.Is(err, errs.InvalidArgument) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%+v: %v", cfg, err)
		}
	}
}

// BenchmarkSpan measures a span with two attributes: without a tracer, in a trace
// that is not recorded, and in one that is.
func BenchmarkSpan(b *testing.B) {
	run := func(b *testing.B, ctx context.Context) {
		b.ReportAllocs()
		for b.Loop() {
			_, span := trace.Start(ctx, "child", trace.Internal)
			span.Text("runtime.sandbox", "sb-1")
			span.Int("runtime.revision", 7)
			span.End(nil)
		}
	}
	b.Run("off", func(b *testing.B) { run(b, b.Context()) })
	for name, sample := range map[string]float64{"unsampled": 0, "on": 1} {
		b.Run(name, func(b *testing.B) {
			e, _ := open(b, sample)
			ctx, root := e.Tracer().Begin(b.Context(), "", "root", trace.Server)
			defer root.End(nil)
			run(b, ctx)
		})
	}
}
