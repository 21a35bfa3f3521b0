package logsink

import (
	"context"
	"strings"

	collector "go.opentelemetry.io/proto/otlp/collector/logs/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	logs "go.opentelemetry.io/proto/otlp/logs/v1"
	resource "go.opentelemetry.io/proto/otlp/resource/v1"
	"google.golang.org/protobuf/proto"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/logline"
	"miren.dev/runtime/pkg/sink"
	"miren.dev/runtime/pkg/sink/httpsink"
)

// otlpSink sends to a collector of OpenTelemetry. The resource of a line is its sandbox, with
// the version of the app.
type otlpSink struct {
	client   *httpsink.Client
	url      string
	instance string
}

func (s *otlpSink) Close() { s.client.Close() }

func (s *otlpSink) Send(ctx context.Context, b Batch) error {
	body, err := proto.Marshal(s.request(b))
	if err != nil {
		return errs.New(errs.InvalidArgument, "encode: %w", err)
	}
	answer, err := s.client.PostGzip(ctx, s.url, "application/x-protobuf", body)
	if err != nil {
		return err
	}
	var resp collector.ExportLogsServiceResponse
	if err := proto.Unmarshal(answer, &resp); err == nil && resp.GetPartialSuccess().GetRejectedLogRecords() > 0 {
		// The protocol says that what was rejected must not be sent again.
		return &sink.Refused{N: resp.GetPartialSuccess().GetRejectedLogRecords(), What: "lines", Message: resp.GetPartialSuccess().GetErrorMessage()}
	}
	return nil
}

func (s *otlpSink) request(b Batch) *collector.ExportLogsServiceRequest {
	type key struct {
		project, app, service, source string
		version                       int64
	}
	groups := map[key]*logs.ScopeLogs{}
	out := &collector.ExportLogsServiceRequest{}
	for i := range b.Entries {
		e := &b.Entries[i]
		k := key{e.Project, e.App, e.Service, e.Source, e.Version}
		g := groups[k]
		if g == nil {
			g = &logs.ScopeLogs{}
			groups[k] = g
			out.ResourceLogs = append(out.ResourceLogs, &logs.ResourceLogs{
				Resource: &resource.Resource{Attributes: []*common.KeyValue{
					text("service.namespace", e.App), text("service.name", serviceName(e)), text("service.instance.id", e.Source),
					text("runtime.project", e.Project), text("runtime.installation", s.instance), number("runtime.app.version", e.Version),
				}},
				ScopeLogs: []*logs.ScopeLogs{g},
			})
		}
		stream := "stdout"
		if e.Stderr {
			stream = "stderr"
		}
		nano := uint64(max(0, e.At.UnixNano()))
		r := &logs.LogRecord{
			TimeUnixNano: nano, ObservedTimeUnixNano: nano, Body: &common.AnyValue{Value: &common.AnyValue_StringValue{StringValue: valid(e.Text)}},
			Attributes: []*common.KeyValue{text("log.iostream", stream)},
		}
		if e.Level != logline.None {
			r.SeverityNumber, r.SeverityText = severities[e.Level], e.Level.String()
		}
		g.LogRecords = append(g.LogRecords, r)
	}
	return out
}

var severities = map[logline.Level]logs.SeverityNumber{
	logline.Trace: logs.SeverityNumber_SEVERITY_NUMBER_TRACE, logline.Debug: logs.SeverityNumber_SEVERITY_NUMBER_DEBUG,
	logline.Info: logs.SeverityNumber_SEVERITY_NUMBER_INFO, logline.Warn: logs.SeverityNumber_SEVERITY_NUMBER_WARN,
	logline.Error: logs.SeverityNumber_SEVERITY_NUMBER_ERROR, logline.Fatal: logs.SeverityNumber_SEVERITY_NUMBER_FATAL,
}

// serviceName is the name under which a service of an app is known elsewhere.
func serviceName(e *Entry) string {
	if e.Service == "" {
		return e.App
	}
	return e.App + "-" + e.Service
}

func text(k, v string) *common.KeyValue {
	return &common.KeyValue{Key: k, Value: &common.AnyValue{Value: &common.AnyValue_StringValue{StringValue: valid(v)}}}
}

func number(k string, v int64) *common.KeyValue {
	return &common.KeyValue{Key: k, Value: &common.AnyValue{Value: &common.AnyValue_IntValue{IntValue: v}}}
}

// valid replaces what is no UTF-8.
func valid(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }
