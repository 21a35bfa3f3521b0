// Package metricsink sends the history of metrics to other systems:
//
//	otlp+http, otlp+https               a collector of OpenTelemetry, by OTLP over HTTP
//	prometheus+http, prometheus+https   a server that takes the remote write of Prometheus (1.0)
//
// A Delivery reads the samples from the history, the oldest first, and hands those of
// one time to a Sink. It records how far it came after each, so a killed process sends
// at most the samples of one time again, which both protocols know as the same. A sink
// that fails is tried again, later and later; meanwhile the samples stay in the
// history. Those that their retention deletes before they are sent are lost.
package metricsink

import (
	"context"
	"strings"
	"time"

	"miren.dev/runtime/pkg/sink/httpsink"
	"miren.dev/runtime/pkg/sink/target"
)

// Sample is a value of a series at a time.
type Sample struct {
	Name string // such as runtime_sandbox_memory_bytes
	// Labels: project, app, service, sandbox, node, those of the metric (code, le), and
	// installation.
	Labels map[string]string
	Start  time.Time // since when a counter counts; the time At: that is not known; zero: the sample is of no counter
	At     time.Time
	Value  float64
}

// counts reports whether the sample is of a counter: one that only grows, or begins
// again at 0.
func (s *Sample) counts() bool { return counts(s.Name) }

func counts(name string) bool {
	return strings.HasSuffix(name, "_total") || strings.HasSuffix(name, "_bucket")
}

// Sink sends samples. One goroutine at a time uses it.
type Sink interface {
	// Send returns when the other system has the samples. InvalidArgument: it refuses
	// them, and would again. A *sink.Refused: it refuses some. After another error
	// they are sent again.
	Send(ctx context.Context, samples []Sample) error
	Close()
}

// New returns the sink of a URL. The query may have headers_file (a file with HTTP
// headers, a line each) and ca_file (a file with the certificates of the authorities
// that sign the server's, in PEM).
func New(raw string) (Sink, error) {
	p, err := target.ParseMetrics(raw)
	if err != nil {
		return nil, err
	}
	again := httpsink.AgainOTLP
	if p.Kind == "prometheus" {
		again = againRemoteWrite
	}
	client, err := httpsink.New(p, again)
	if err != nil {
		return nil, err
	}
	if p.Kind == "prometheus" {
		return &remoteWrite{Client: client, url: p.URL}, nil
	}
	return &otlp{Client: client, url: p.URL}, nil
}
