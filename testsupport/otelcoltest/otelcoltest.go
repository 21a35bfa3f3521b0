// Package otelcoltest starts an OpenTelemetry Collector for tests: the one that `hack/toolchain.sh test` builds, found on
// the PATH. It has the configuration of docs/sinks.md, but for its address and its file. It listens on loopback and
// keeps what it receives in a directory of the test.
package otelcoltest

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	logs "go.opentelemetry.io/proto/otlp/collector/logs/v1"
	metrics "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	traces "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"miren.dev/runtime/testsupport/checkout"
	"miren.dev/runtime/testsupport/need"
	"miren.dev/runtime/testsupport/process"
	"miren.dev/runtime/testsupport/wait"
)

// Collector is an OpenTelemetry Collector.
type Collector struct {
	Address string // host:port of OTLP over HTTP

	path string
	args []string
	file string // of what it received, an object of OTLP/JSON a line
	*process.Process
}

// Start starts a collector and waits until it serves.
func Start(t testing.TB) *Collector {
	t.Helper()
	path, err := exec.LookPath("otelcol")
	if err != nil {
		need.Missing(t, "otelcol is not built: run hack/toolchain.sh test and put bin/ on the PATH")
	}
	dir := t.TempDir()
	write := func(name, text string) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	c := &Collector{Address: freeAddress(t), path: path, file: filepath.Join(dir, "received.json")}
	c.args = []string{"--config", write("guide.yaml", checkout.DocBlock(t, "docs/sinks.md", "receivers:")), "--config", write("test.yaml", fmt.Sprintf(`
receivers: {otlp: {protocols: {http: {endpoint: %q}}}}
exporters: {file: {path: %q}}
service: {telemetry: {metrics: {level: none}}}
`, c.Address, c.file))}
	c.Run(t)
	return c
}

func freeAddress(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// Run starts the collector again after Kill, and waits until it serves.
func (c *Collector) Run(t testing.TB) {
	t.Helper()
	c.endLine(t)
	c.Process = process.Start(t, nil, c.path, c.args...)
	wait.NoError(t, "the collector serves", func() error {
		if c.Ended() {
			t.Fatalf("the collector ended: %s", c.Output())
		}
		conn, err := net.Dial("tcp", c.Address)
		if err == nil {
			conn.Close()
		}
		return err
	})
}

// endLine ends a line of the file that Kill has cut, so that the next one is whole.
func (c *Collector) endLine(t testing.TB) {
	t.Helper()
	b, err := os.ReadFile(c.file)
	if err == nil && len(b) > 0 && b[len(b)-1] != '\n' {
		err = os.WriteFile(c.file, append(b, '\n'), 0o600)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
}

// Logs returns the resources with lines that it has received so far.
func (c *Collector) Logs(t testing.TB) (all []*logs.ExportLogsServiceRequest) {
	t.Helper()
	for _, line := range c.received(t, "resourceLogs") {
		all = append(all, decode(t, line, &logs.ExportLogsServiceRequest{}))
	}
	return all
}

// Metrics returns the resources with samples that it has received so far.
func (c *Collector) Metrics(t testing.TB) (all []*metrics.ExportMetricsServiceRequest) {
	t.Helper()
	for _, line := range c.received(t, "resourceMetrics") {
		all = append(all, decode(t, line, &metrics.ExportMetricsServiceRequest{}))
	}
	return all
}

// Traces returns the resources with spans that it has received so far.
func (c *Collector) Traces(t testing.TB) (all []*traces.ExportTraceServiceRequest) {
	t.Helper()
	for _, line := range c.received(t, "resourceSpans") {
		all = append(all, decode(t, idsAsBase64(t, line), &traces.ExportTraceServiceRequest{}))
	}
	return all
}

func decode[M proto.Message](t testing.TB, line []byte, m M) M {
	t.Helper()
	if err := protojson.Unmarshal(line, m); err != nil {
		t.Fatalf("decode what the collector wrote: %v: %s", err, line)
	}
	return m
}

// received returns the lines of the file that have a kind of resource. A line that ends without a line feed is still
// being written, or was cut by Kill before its sender had an answer.
func (c *Collector) received(t testing.TB, kind string) (lines [][]byte) {
	t.Helper()
	b, err := os.ReadFile(c.file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	for line := range bytes.Lines(b) {
		if bytes.HasSuffix(line, []byte("}\n")) && bytes.HasPrefix(line, []byte(`{"`+kind+`"`)) {
			lines = append(lines, line)
		}
	}
	return lines
}

// idsAsBase64 rewrites the ids of spans, which are hexadecimal in OTLP/JSON, as Protocol Buffers have bytes in JSON.
func idsAsBase64(t testing.TB, line []byte) []byte {
	t.Helper()
	var v any
	d := json.NewDecoder(bytes.NewReader(line))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		t.Fatalf("decode what the collector wrote: %v: %s", err, line)
	}
	var rewrite func(v any)
	rewrite = func(v any) {
		switch v := v.(type) {
		case []any:
			for _, x := range v {
				rewrite(x)
			}
		case map[string]any:
			for k, x := range v {
				if id, ok := x.(string); ok && (k == "traceId" || k == "spanId" || k == "parentSpanId") {
					b, err := hex.DecodeString(id)
					if err != nil {
						t.Fatalf("%s is %q, which is not hexadecimal", k, id)
					}
					v[k] = b // json.Marshal writes it as base64
				}
				rewrite(x)
			}
		}
	}
	rewrite(v)
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
