package logsink

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/klauspost/compress/gzip"
	collector "go.opentelemetry.io/proto/otlp/collector/logs/v1"
	logs "go.opentelemetry.io/proto/otlp/logs/v1"
	"google.golang.org/protobuf/proto"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/logline"
	"miren.dev/runtime/pkg/logstore"
	"miren.dev/runtime/pkg/sink"
	"miren.dev/runtime/pkg/sink/target"
	"miren.dev/runtime/testsupport/need"
	"miren.dev/runtime/testsupport/tlstest"
	"miren.dev/runtime/testsupport/wait"
)

var at = time.Date(2026, 1, 2, 3, 4, 5, 678901000, time.UTC)

func twoLines() Batch {
	return Batch{ID: "1", Entries: []Entry{
		{"default", "shop", logstore.Line{Source: "sb-1", Service: "web", Version: 3, At: at, Text: "a \xff line", Level: logline.Warn}},
		{"default", "shop", logstore.Line{Source: "sb-1", Service: "web", Version: 3, At: at, Text: "on stderr", Stderr: true}},
		{`pro"j]`, "other", logstore.Line{Source: "sb-2", Version: 1, At: at, Text: "of another app"}},
	}}
}

// TestOTLP: the request is that of the protocol; a part that is refused is told.
func TestOTLP(t *testing.T) {
	var got collector.ExportLogsServiceRequest
	var header http.Header
	answer := &collector.ExportLogsServiceResponse{}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header = r.Header
		z, err := gzip.NewReader(r.Body)
		if err != nil {
			t.Error(err)
			return
		}
		b, err := io.ReadAll(z)
		if err != nil || r.URL.Path != "/v1/logs" || proto.Unmarshal(b, &got) != nil {
			t.Errorf("%s: %d bytes, %v", r.URL.Path, len(b), err)
		}
		b, _ = proto.Marshal(answer)
		_, _ = w.Write(b)
	}))
	defer srv.Close()
	file := filepath.Join(t.TempDir(), "headers")
	if err := os.WriteFile(file, []byte("# a key\nAuthorization: Bearer abc\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := New("otlp+"+srv.URL+"?headers_file="+file, "inst")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.Send(t.Context(), twoLines()); err != nil {
		t.Fatal(err)
	}
	if len(got.ResourceLogs) != 2 || header.Get("Authorization") != "Bearer abc" || header.Get("Content-Type") != "application/x-protobuf" {
		t.Fatalf("%v with %v", &got, header)
	}
	attrs := map[string]string{}
	for _, a := range got.ResourceLogs[0].Resource.Attributes {
		attrs[a.Key] = a.Value.GetStringValue()
	}
	if attrs["service.namespace"] != "shop" || attrs["service.name"] != "shop-web" || attrs["service.instance.id"] != "sb-1" || attrs["runtime.project"] != "default" {
		t.Errorf("%v", attrs)
	}
	records := got.ResourceLogs[0].ScopeLogs[0].LogRecords
	if len(records) != 2 || records[0].Body.GetStringValue() != "a \uFFFD line" || records[0].SeverityNumber != logs.SeverityNumber_SEVERITY_NUMBER_WARN ||
		records[0].TimeUnixNano != uint64(at.UnixNano()) || records[1].SeverityNumber != 0 {
		t.Errorf("%v", records)
	}
	answer.PartialSuccess = &collector.ExportLogsPartialSuccess{RejectedLogRecords: 2, ErrorMessage: "too old"}
	if err := s.Send(t.Context(), twoLines()); err == nil || !strings.Contains(err.Error(), "refused 2 lines: too old") {
		t.Error(err)
	}
}

// TestStatuses: what is sent again after an answer, and when. OTLP names the statuses.
func TestStatuses(t *testing.T) {
	var status atomic.Int32
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "7")
		w.WriteHeader(int(status.Load()))
	}))
	defer srv.Close()
	for kind, again := range map[string][]int{
		"otlp":       {429, 502, 503, 504},
		"clickhouse": {401, 403, 404, 408, 429, 500, 501, 502, 503, 504},
	} {
		s, err := New(kind+"+"+srv.URL+map[string]string{"clickhouse": "/logs/lines"}[kind], "inst")
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		for _, code := range []int{400, 401, 403, 404, 408, 413, 422, 429, 500, 501, 502, 503, 504} {
			status.Store(int32(code))
			want := errs.InvalidArgument
			if slices.Contains(again, code) {
				want = errs.Unavailable
			}
			var later *sink.Later
			if err := s.Send(t.Context(), twoLines()); !errs.Is(err, want) {
				t.Errorf("%s, %d: %s (%v), want %s", kind, code, errs.ClassOf(err), err, want)
			} else if errors.As(err, &later) != (want == errs.Unavailable) || later != nil && later.After != 7*time.Second {
				t.Errorf("%s, %d: later %v", kind, code, later)
			}
		}
	}
}

// TestSyslogMessage: what RFC 5424 says of a message.
func TestSyslogMessage(t *testing.T) {
	s := &syslogSink{host: "inst"}
	b := twoLines()
	for i, want := range []string{
		`<12>1 2026-01-02T03:04:05.678901Z inst shop-web sb-1 line [runtime@32473 project="default" app="shop" service="web" version="3"] ` + "\uFEFFa \uFFFD line",
		`<11>1 2026-01-02T03:04:05.678901Z inst shop-web sb-1 line [runtime@32473 project="default" app="shop" service="web" version="3"] ` + "\uFEFFon stderr",
		`<14>1 2026-01-02T03:04:05.678901Z inst other sb-2 line [runtime@32473 project="pro\"j\]" app="other" service="" version="1"] ` + "\uFEFFof another app",
	} {
		if got := string(s.message(&b.Entries[i])); got != want {
			t.Errorf("%s\nwant\n%s", got, want)
		}
	}
}

// TestSyslogStreams: messages with their lengths; a server that closed the connection
// gets the next batch on a new one. By TLS its certificate is checked.
func TestSyslogStreams(t *testing.T) {
	for _, network := range []string{"tcp", "tls"} {
		t.Run(network, func(t *testing.T) { testSyslogStream(t, network) })
	}
}

func testSyslogStream(t *testing.T, network string) {
	l, err := net.Listen("tcp", "localhost:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	url := fmt.Sprintf("syslog+%s://localhost:%d", network, l.Addr().(*net.TCPAddr).Port)
	checkStranger := func() {}
	if network == "tls" {
		ca := tlstest.New(t)
		chain, key := ca.Issue(t, "localhost")
		cert, err := tls.X509KeyPair([]byte(chain), []byte(key))
		if err != nil {
			t.Fatal(err)
		}
		l = tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{cert}})
		file := filepath.Join(t.TempDir(), "ca.pem")
		if err := os.WriteFile(file, ca.PEM(), 0o600); err != nil {
			t.Fatal(err)
		}
		stranger, err := New(url, "inst")
		if err != nil {
			t.Fatal(err)
		}
		defer stranger.Close()
		checkStranger = func() {
			if err := stranger.Send(t.Context(), twoLines()); !errs.Is(err, errs.Unavailable) || !strings.Contains(err.Error(), "certificate") {
				t.Errorf("an unknown authority: %v", err)
			}
		}
		url += "?ca_file=" + file
	}
	messages := make(chan string, 10)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			r := bufio.NewReader(c)
			for range 3 { // then it is closed
				var n int
				if _, err := fmt.Fscanf(r, "%d ", &n); err != nil {
					break
				}
				b := make([]byte, n)
				if _, err := io.ReadFull(r, b); err != nil {
					break
				}
				messages <- string(b)
			}
			c.Close()
		}
	}()
	s, err := New(url, "inst")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for range 2 {
		if err := s.Send(t.Context(), twoLines()); err != nil {
			t.Fatal(err)
		}
		for i, want := range []string{"a \uFFFD line", "on stderr", "of another app"} {
			select {
			case m := <-messages:
				if !strings.HasSuffix(m, "] \uFEFF"+want) {
					t.Errorf("message %d is %q", i, m)
				}
			case <-time.After(10 * time.Second):
				t.Fatal("the message does not come")
			}
		}
		wait.For(t, "the server closes the connection", func() bool { return closed(s.(*syslogSink).conn) })
	}
	checkStranger()
	l.Close()
	if err := s.Send(t.Context(), twoLines()); !errs.Is(err, errs.Unavailable) {
		t.Error(err)
	}
}

// TestTarget: URLs that are right, and what is wrong with others.
func TestTarget(t *testing.T) {
	for raw, want := range map[string]target.Target{
		"otlp+http://127.0.0.1:4318":                     {Kind: "otlp", Transport: "http", URL: "http://127.0.0.1:4318/v1/logs"},
		"otlp+https://logs.example/otlp?headers_file=/h": {Kind: "otlp", Transport: "https", URL: "https://logs.example/otlp", HeadersFile: "/h"},
		"syslog+udp://logs.example":                      {Kind: "syslog", Transport: "udp", URL: "udp://logs.example", Address: "logs.example:514"},
		"syslog+tls://[::1]:7000?ca_file=/ca":            {Kind: "syslog", Transport: "tls", URL: "tls://[::1]:7000", Address: "[::1]:7000", CAFile: "/ca"},
		"clickhouse+https://ch.example:8443/db/t_1":      {Kind: "clickhouse", Transport: "https", URL: "https://ch.example:8443/", Table: "db.t_1"},
	} {
		if got, err := target.Parse(raw); err != nil || *got != want {
			t.Errorf("%s: %+v, %v", raw, got, err)
		}
	}
	for _, raw := range []string{"http://x", "otlp+tcp://x", "syslog+http://x", "clickhouse+http://x", "clickhouse+http://x/db", "clickhouse+http://x/db/t;drop", "otlp+http://", "syslog+udp://x/y",
		"otlp+http://x?password=1", "otlp+http://u:p@x", "syslog+tcp://x?headers_file=/h"} {
		if err := target.Check(raw); !errs.Is(err, errs.InvalidArgument) {
			t.Errorf("%s: %v", raw, err)
		}
	}
	if a, b := target.Name("syslog+udp://x:1"), target.Name("syslog+tcp://x:1"); a == b || !strings.HasPrefix(a, "syslog-x-1-") || a != target.Name("syslog+udp://x:1?ca_file=/y") {
		t.Error(a, b)
	}
}

// TestRsyslog sends to a real syslog server, by each transport, and reads its file.
func TestRsyslog(t *testing.T) {
	need.Tools(t, "rsyslogd")
	dir := t.TempDir()
	port := freePort(t)
	out, conf := filepath.Join(dir, "out"), filepath.Join(dir, "rsyslog.conf")
	text := fmt.Sprintf(`
module(load="imtcp")
module(load="imudp")
template(name="all" type="string" string="%%pri-text%%|%%timestamp:::date-rfc3339%%|%%hostname%%|%%app-name%%|%%procid%%|%%msgid%%|%%structured-data%%|%%msg%%\n")
ruleset(name="keep") { action(type="omfile" file="%s" template="all" asyncWriting="off" flushOnTXEnd="on") }
input(type="imtcp" address="127.0.0.1" port="%d" ruleset="keep")
input(type="imudp" address="127.0.0.1" port="%d" ruleset="keep")
`, out, port, port)
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "rsyslogd", "-n", "-f", conf, "-i", filepath.Join(dir, "pid"))
	var log strings.Builder
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
		if t.Failed() {
			t.Log(log.String())
		}
	})
	for i, network := range []string{"tcp", "udp"} {
		s, err := New(fmt.Sprintf("syslog+%s://127.0.0.1:%d", network, port), "inst")
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		wait.For(t, "rsyslogd takes a batch by "+network, func() bool { return s.Send(t.Context(), twoLines()) == nil })
		wait.For(t, "the lines are in its file", func() bool {
			b, _ := os.ReadFile(out) // it is made by the first line
			return strings.Count(string(b), "\n") >= 3*(i+1)
		})
	}
	b, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	want := `user.warning|2026-01-02T03:04:05.678901Z|inst|shop-web|sb-1|line|[runtime@32473 project="default" app="shop" service="web" version="3"]|`
	if lines := strings.Split(string(b), "\n"); !strings.HasPrefix(lines[0], want) || !strings.Contains(lines[0], "a \uFFFD line") || !strings.HasPrefix(lines[1], "user.err|") {
		t.Errorf("%s", b)
	}
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}
