// Package otlp sends the spans of pkg/trace to a collector of OpenTelemetry, by
// OTLP over HTTP. Spans wait in a queue of fixed size and are sent in batches: a
// collector that is slow or away costs spans and nothing else. A batch is tried for
// 20 s, so one that is restarted costs none unless the queue is full.
package otlp

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/headersfile"
	"miren.dev/runtime/pkg/trace"
)

const (
	// path of the receiver where the endpoint states none.
	path = "/v1/traces"
	// sendTimeout bounds one attempt to send a batch.
	sendTimeout = 5 * time.Second
	// retryTime is how long a batch is sent again and again to a collector that is away or busy.
	retryTime = 4 * sendTimeout
	// closeTimeout bounds how long Close sends what waits.
	closeTimeout = 2 * time.Second
	// complainEvery is the time between two log lines about a collector that is
	// away.
	complainEvery = time.Minute
)

// Config configures an Exporter. Endpoint and Logger are required.
type Config struct {
	Endpoint string // http(s)://host:port[/path]
	// HeadersFile has a header per line, "Name: value", such as for a collector
	// that needs a key; empty: none.
	HeadersFile string
	// Sample is the share of traces begun here that are recorded, from 0 to 1. A
	// trace that a caller began is recorded as the caller says.
	Sample  float64
	Service string // runtime, runtime-runner
	ID      string // of the installation
	Version string
	Logger  *slog.Logger
}

// Exporter sends spans until Close.
type Exporter struct {
	provider *sdk.TracerProvider
	tracer   *trace.Tracer
}

// New returns an Exporter. It does not connect. InvalidArgument for an endpoint
// or a file of headers that cannot be used.
func New(ctx context.Context, cfg Config) (*Exporter, error) {
	u, err := url.Parse(cfg.Endpoint)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, errs.New(errs.InvalidArgument, "traces.endpoint is not http://HOST:PORT or https://HOST:PORT")
	}
	if u.Path == "" || u.Path == "/" {
		u.Path = path
	}
	headers, err := headersfile.Read(cfg.HeadersFile)
	if err != nil {
		return nil, errs.New(errs.InvalidArgument, "traces.headers_file: %w", err)
	}
	sender, err := otlptracehttp.New(ctx, otlptracehttp.WithEndpointURL(u.String()), otlptracehttp.WithHeaders(headers),
		otlptracehttp.WithHTTPClient(&http.Client{Transport: temporary{http.DefaultTransport}, Timeout: sendTimeout}),
		otlptracehttp.WithCompression(otlptracehttp.GzipCompression),
		otlptracehttp.WithRetry(otlptracehttp.RetryConfig{Enabled: true, InitialInterval: time.Second, MaxInterval: sendTimeout, MaxElapsedTime: retryTime}))
	if err != nil {
		return nil, errs.New(errs.InvalidArgument, "traces.endpoint: %w", err)
	}
	p := sdk.NewTracerProvider(
		sdk.WithBatcher(&quiet{SpanExporter: sender, logger: cfg.Logger}),
		sdk.WithSampler(sdk.ParentBased(sdk.TraceIDRatioBased(cfg.Sample))),
		sdk.WithResource(resource.NewSchemaless(
			attribute.String("service.name", cfg.Service), attribute.String("service.version", cfg.Version), attribute.String("service.instance.id", cfg.ID),
		)),
	)
	return &Exporter{p, trace.New(p)}, nil
}

// Tracer returns the Tracer whose spans are sent; nil of a nil Exporter.
func (e *Exporter) Tracer() *trace.Tracer {
	if e == nil {
		return nil
	}
	return e.tracer
}

// Flush sends what waits.
func (e *Exporter) Flush(ctx context.Context) error { return e.provider.ForceFlush(ctx) }

// Close sends what waits, for a short time. Of a nil Exporter it does nothing.
func (e *Exporter) Close() {
	if e == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	_ = e.provider.Shutdown(ctx) // what cannot be sent in time is lost
}

// quiet logs that spans were lost, now and then, instead of giving the error to
// the library, which prints every one.
type quiet struct {
	sdk.SpanExporter
	logger *slog.Logger
	last   atomic.Int64 // when it complained, Unix nanoseconds
}

// ExportSpans implements sdk.SpanExporter.
func (q *quiet) ExportSpans(ctx context.Context, spans []sdk.ReadOnlySpan) error {
	err := q.SpanExporter.ExportSpans(ctx, spans)
	if err == nil {
		return nil
	}
	now, last := time.Now().UnixNano(), q.last.Load()
	if now-last > int64(complainEvery) && q.last.CompareAndSwap(last, now) {
		q.logger.Warn("spans were not sent", "count", len(spans), "error", err)
	}
	return nil
}

// temporary is a transport whose errors are temporary: a collector that is restarted refuses connections and breaks those
// it has. The library sends only after temporary errors again. The error of a certificate stays as it is.
type temporary struct{ http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (t temporary) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := t.RoundTripper.RoundTrip(r)
	var certificate *tls.CertificateVerificationError
	if err != nil && r.Context().Err() == nil && !errors.As(err, &certificate) {
		err = away{err}
	}
	return resp, err
}

// away is the error of a collector that may answer soon.
type away struct{ error }

func (away) Temporary() bool { return true }

func (e away) Unwrap() error { return e.error }
