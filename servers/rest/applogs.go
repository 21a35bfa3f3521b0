package rest

import (
	"context"
	"io"
	"net/http"
	"slices"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/pkg/opt"
)

// AppLogs is lines of an app that a search found.
type AppLogs struct {
	Lines []AppLogLine `json:"lines" doc:"The last lines that match, ordered by time."`
	More  bool         `json:"more" doc:"Earlier lines match too, or the server stopped at 16 MiB of text: search again with until set to the time of the first one."`
}

type searchLogsInput struct {
	AppInput
	Grep    string    `query:"grep" maxLength:"1024" doc:"Only lines that match this regular expression (RE2)." example:"timeout|refused"`
	Level   string    `query:"level" enum:"trace,debug,info,warn,error,fatal" doc:"Only lines of this level or a more serious one. A line that says no level counts as info, on stderr as error."`
	Service string    `query:"service" maxLength:"40" doc:"Only lines of this service."`
	Since   time.Time `query:"since" doc:"Only lines of this time or later."`
	Until   time.Time `query:"until" doc:"Only lines before this time."`
	Limit   int64     `query:"limit" minimum:"1" maximum:"10000" default:"500" doc:"Most lines of the answer."`
}

func registerAppLogs(a huma.API) {
	register(a, op(http.MethodGet, "/apps/{app}/logs", "search-app-logs", "apps", "Search the kept output of an app's processes"), searchAppLogs)
}

func searchAppLogs(ctx context.Context, in *searchLogsInput) (*body[AppLogs], error) {
	if _, err := findApp(ctx, in.App); err != nil {
		return nil, err
	}
	limit := in.Limit + 1
	st, err := sandboxes(ctx).Logs(ctx, &sandbox.LogsRequest{
		Project: callerFrom(ctx).Project(), App: in.App, Service: in.Service, Grep: in.Grep, Level: in.Level,
		Since: opt.Of(in.Since), Until: opt.Of(in.Until), Limit: &limit,
	})
	if err != nil {
		return nil, err
	}
	defer st.Close()
	size := 0
	out := AppLogs{Lines: []AppLogLine{}}
	for {
		b, err := st.Recv()
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, err
		}
		for i := range b.Lines {
			out.Lines = append(out.Lines, appLine(&b.Lines[i]))
			size += len(b.Lines[i].Text)
		}
	}
	out.More = size >= sandbox.MaxLogSelection
	if n := int64(len(out.Lines)) - in.Limit; n > 0 {
		out.Lines, out.More = slices.Clone(out.Lines[n:]), true
	}
	return &body[AppLogs]{out}, nil
}
