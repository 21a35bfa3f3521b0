package logsink

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/sink/httpsink"
)

// clickhouseSink inserts rows into a table of ClickHouse. Columns that the table does
// not have are left out.
type clickhouseSink struct {
	client *httpsink.Client
	url    string
	table  string
}

// row is a line, in the names of columns.
type row struct {
	Timestamp int64  `json:"timestamp"` // nanoseconds since 1970, for a column of type DateTime64(9)
	Project   string `json:"project"`
	App       string `json:"app"`
	Service   string `json:"service"`
	Version   int64  `json:"version"`
	Sandbox   string `json:"sandbox"`
	Stream    string `json:"stream"`
	Level     string `json:"level"`
	Message   string `json:"message"`
}

// againClickHouse reports whether rows are sent again after an answer with a status: unless ClickHouse cannot read them.
// A table that is missing may appear.
func againClickHouse(status int) bool {
	return status != http.StatusBadRequest && status != http.StatusRequestEntityTooLarge && status != http.StatusUnprocessableEntity
}

func (s *clickhouseSink) Close() { s.client.Close() }

func (s *clickhouseSink) Send(ctx context.Context, b Batch) error {
	var body []byte
	for i := range b.Entries {
		e := &b.Entries[i]
		r := row{
			Timestamp: e.At.UnixNano(), Project: e.Project, App: e.App, Service: e.Service, Version: e.Version, Sandbox: e.Source,
			Stream: "stdout", Level: e.Level.String(), Message: valid(e.Text),
		}
		if e.Stderr {
			r.Stream = "stderr"
		}
		line, err := json.Marshal(r)
		if err != nil {
			return errs.New(errs.InvalidArgument, "encode: %w", err)
		}
		body = append(append(body, line...), '\n')
	}
	q := url.Values{
		"query": {"INSERT INTO " + s.table + " FORMAT JSONEachRow"}, "input_format_skip_unknown_fields": {"1"},
		// The answer comes when the rows are in the table; a repeated batch is known.
		"async_insert": {"0"}, "wait_end_of_query": {"1"}, "insert_deduplication_token": {b.ID},
	}
	_, err := s.client.PostGzip(ctx, s.url+"?"+q.Encode(), "application/x-ndjson", body)
	return err
}
