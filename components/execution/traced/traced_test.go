package traced_test

import (
	"log/slog"
	"testing"

	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/components/execution/traced"
	"miren.dev/runtime/pkg/trace"
	"miren.dev/runtime/pkg/trace/otlp"
	"miren.dev/runtime/pkg/trace/tracetest"
	"miren.dev/runtime/testsupport/executiontest/fake"
)

// TestSpans holds that what a controller does begins a trace, that what a request
// does is in its trace, and that neither says more than the sandbox.
func TestSpans(t *testing.T) {
	got := tracetest.New(t)
	e, err := otlp.New(t.Context(), otlp.Config{Endpoint: got.URL, Sample: 1, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	const secret = "hunter2-5f0c"
	d := traced.New(fake.NewMachine().Driver(), e.Tracer())
	s := execution.Spec{ID: "sb-1", Image: "img", Idle: true, Network: execution.NetworkNone, Env: []string{"TOKEN=" + secret}}
	if _, err := d.Ensure(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	ctx, root := e.Tracer().Begin(t.Context(), "", "request", trace.Server)
	p, err := d.Exec(ctx, "sb-1", execution.ExecSpec{Command: []string{"/bin/guest", "echo", secret}, Env: []string{"A=" + secret}, NoInput: true})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if _, err := d.Exec(ctx, "sb-1", execution.ExecSpec{Command: []string{"/" + secret}}); err == nil {
		t.Error("a command that does not exist runs")
	}
	root.End(nil)
	if err := e.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	all := got.Spans("")
	if len(all) != 4 || all[0].Name != "sandbox set up" || all[0].Parent != "" || all[0].Attributes["runtime.sandbox"] != "sb-1" {
		t.Fatalf("got %+v", all)
	}
	for i, failed := range []bool{false, true} {
		if s := all[i+1]; s.Name != "sandbox exec" || s.Parent != all[3].ID || s.Failed != failed {
			t.Errorf("got %+v", s)
		}
	}
	if got.Contains(secret) {
		t.Error("a secret was sent")
	}
}
