package logsink

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	common "go.opentelemetry.io/proto/otlp/common/v1"
	logs "go.opentelemetry.io/proto/otlp/logs/v1"

	"miren.dev/runtime/pkg/logline"
	"miren.dev/runtime/pkg/logstore"
	"miren.dev/runtime/testsupport/otelcoltest"
	"miren.dev/runtime/testsupport/wait"
)

// record is a line as a collector received it.
type record struct {
	of map[string]string // attributes of its resource
	*logs.LogRecord
}

func records(t *testing.T, c *otelcoltest.Collector) (out []record) {
	t.Helper()
	for _, req := range c.Logs(t) {
		for _, r := range req.ResourceLogs {
			of := attributesOf(r.Resource.GetAttributes())
			for _, scope := range r.ScopeLogs {
				for _, l := range scope.LogRecords {
					out = append(out, record{of, l})
				}
			}
		}
	}
	return out
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

// TestCollector: an OpenTelemetry Collector has of each line its text, time, level, stream and owner.
func TestCollector(t *testing.T) {
	c := otelcoltest.Start(t)
	s, err := New("otlp+http://"+c.Address, "inst")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	texts := []string{"plain", "", "a \xff byte", "nul \x00, tab \t, \"quotes\" and \\", "日本語 🎉", strings.Repeat("x", 64<<10), `{"level":"info","message":"of JSON"}`}
	levels := []logline.Level{logline.None, logline.Trace, logline.Debug, logline.Info, logline.Warn, logline.Error, logline.Fatal}
	var b Batch
	for i, text := range texts {
		b.Entries = append(b.Entries, Entry{"default", "shop", logstore.Line{
			Source: "sb-1", Service: "web", Version: 3, At: at.Add(time.Duration(i)), Text: text, Level: levels[i], Stderr: i%2 == 1,
		}})
	}
	b.Entries = append(b.Entries, Entry{"other", "job", logstore.Line{Source: "sb-2", Version: 1, At: at, Text: "without a service"}},
		Entry{"default", "shop", logstore.Line{Source: "sb-1", Service: "web", Version: 4, At: at, Text: "of the next version"}})
	if err := s.Send(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	got := records(t, c) // the collector answers when its file has the lines
	if len(got) != len(b.Entries) {
		t.Fatalf("%d records of %d lines", len(got), len(b.Entries))
	}
	byText := map[string]record{}
	for _, r := range got {
		byText[r.Body.GetStringValue()] = r
	}
	severities := []logs.SeverityNumber{0, 1, 5, 9, 13, 17, 21} // as the protocol numbers them
	for i := range b.Entries {
		e := &b.Entries[i]
		r, ok := byText[valid(e.Text)]
		if !ok {
			t.Errorf("there is no record of %.40q", e.Text)
			continue
		}
		of := map[string]string{
			"service.namespace": e.App, "service.name": serviceName(e), "service.instance.id": e.Source, "runtime.project": e.Project,
			"runtime.installation": "inst", "runtime.app.version": fmt.Sprintf("int %d", e.Version),
		}
		if fmt.Sprint(r.of) != fmt.Sprint(of) {
			t.Errorf("%.40q has the resource %v, want %v", e.Text, r.of, of)
		}
		stream := map[bool]string{false: "stdout", true: "stderr"}[e.Stderr]
		if got := attributesOf(r.Attributes); len(got) != 1 || got["log.iostream"] != stream {
			t.Errorf("%.40q has the attributes %v", e.Text, got)
		}
		if r.TimeUnixNano != uint64(e.At.UnixNano()) || r.ObservedTimeUnixNano != r.TimeUnixNano {
			t.Errorf("%.40q has the times %d and %d, want %d", e.Text, r.TimeUnixNano, r.ObservedTimeUnixNano, e.At.UnixNano())
		}
		if i < len(severities) && (r.SeverityNumber != severities[i] || r.SeverityText != e.Level.String()) {
			t.Errorf("%.40q of level %q has the severity %d %q, want %d", e.Text, e.Level, r.SeverityNumber, r.SeverityText, severities[i])
		}
	}
}

// TestKilledCollector: a collector that is killed again and again while lines are sent has all of them at last, in
// order. What one outage can send again is a batch.
func TestKilledCollector(t *testing.T) {
	const lines, kills = 12_000, 3
	c := otelcoltest.Start(t)
	store := openLogs(t, logstore.Config{Dir: t.TempDir(), SegmentBytes: 64 << 10})
	d := newDelivery(t, "otlp+http://"+c.Address, store, filepath.Join(t.TempDir(), "sink.json"))
	run(t, d)
	appendTo(t, store, "shop", 0, lines/2)
	for kill := 1; kill <= kills; kill++ {
		wait.For(t, "lines are received", func() bool { return len(records(t, c)) >= lines/2/kills*kill-1000 })
		c.Kill()
		appendTo(t, store, "shop", lines/2*kill/kills+lines/2-lines/2/kills, lines/2*kill/kills+lines/2)
		wait.For(t, "the delivery waits", func() bool { return d.Stats().Error != "" })
		c.Run(t)
	}
	wait.For(t, "all lines are answered", func() bool { return d.Stats().Sent == lines })
	next, again := 0, 0
	for _, r := range records(t, c) {
		var i int
		if _, err := fmt.Sscanf(r.Body.GetStringValue(), "line %d", &i); err != nil {
			t.Fatal(err)
		}
		if i > next {
			t.Fatalf("line %d comes after line %d", i, next-1)
		}
		if i < next {
			again++
		}
		next = max(next, i+1)
	}
	if next != lines || again > kills*batchLines {
		t.Errorf("%d of %d lines are there, %d came again", next, lines, again)
	}
	if s := d.Stats(); s.Lost != 0 || s.Refused != 0 {
		t.Errorf("%+v", s)
	}
	t.Logf("%d lines came again", again)
}
