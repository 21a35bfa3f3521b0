// Package logsink sends kept lines of logs to other systems:
//
//	otlp+http, otlp+https               a collector of OpenTelemetry, by OTLP over HTTP
//	syslog+udp, syslog+tcp, syslog+tls  a syslog server, RFC 5424
//	clickhouse+http, clickhouse+https   a table of ClickHouse, by its HTTP interface
//
// A Delivery reads the kept logs and hands batches to a Sink, one at a time. It records
// how far it came after each batch, so a killed process sends at most the last batch
// again. A sink that fails is tried again, later and later; meanwhile the lines stay in
// the kept logs, and nothing waits for it. Lines that their retention deletes before
// they are sent are lost, and counted.
package logsink

import (
	"context"

	"miren.dev/runtime/pkg/logstore"
	"miren.dev/runtime/pkg/sink/httpsink"
	"miren.dev/runtime/pkg/sink/target"
)

// Entry is a line with what it belongs to.
type Entry struct {
	Project, App string // names
	logstore.Line
}

// Batch is entries that are sent together.
type Batch struct {
	Entries []Entry
	// ID is the same when the batch is sent again by the same process, or by one that
	// follows and finds no more lines.
	ID string
}

// Sink sends batches. One goroutine at a time uses it.
type Sink interface {
	// Send returns when the other system has the batch, as far as its protocol says.
	// InvalidArgument: it refuses these lines, and would again. After another error the
	// batch is sent again.
	Send(ctx context.Context, b Batch) error
	Close()
}

// New returns the sink of a URL. The query may have headers_file (a file with HTTP
// headers, a line each) and ca_file (a file with the certificates of the authorities
// that sign the server's, in PEM).
func New(raw, instance string) (Sink, error) {
	p, err := target.Parse(raw)
	if err != nil {
		return nil, err
	}
	if p.Kind == "syslog" {
		cfg, err := httpsink.TLS(p)
		if err != nil {
			return nil, err
		}
		return &syslogSink{network: p.Transport, address: p.Address, tls: cfg, host: instance}, nil
	}
	again := httpsink.AgainOTLP
	if p.Kind == "clickhouse" {
		again = againClickHouse
	}
	client, err := httpsink.New(p, again)
	if err != nil {
		return nil, err
	}
	if p.Kind == "clickhouse" {
		return &clickhouseSink{client: client, url: p.URL, table: p.Table}, nil
	}
	return &otlpSink{client: client, url: p.URL, instance: instance}, nil
}
