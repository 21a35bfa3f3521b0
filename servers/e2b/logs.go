package e2b

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/pkg/errs"
)

// maxLogLines bounds the lines of one answer.
const maxLogLines = 1000

// logEntry is a line that a sandbox printed. Levels of E2B are not those of
// programs: what came on the error stream has the level error.
type logEntry struct {
	Timestamp time.Time         `json:"timestamp"`
	Message   string            `json:"message"`
	Level     string            `json:"level"`
	Fields    map[string]string `json:"fields"`
}

// oldEntry is the form of older clients.
type oldEntry struct {
	Timestamp time.Time `json:"timestamp"`
	Line      string    `json:"line"`
}

// logRange says which lines a client wants.
type logRange struct {
	limit    int
	from     time.Time // zero: from the beginning, or from the end if backward
	backward bool
	errors   bool // only those of the level error
	search   string
}

func logRangeOf(q url.Values) (logRange, error) {
	r := logRange{limit: maxLogLines, backward: q.Get("direction") == "backward", errors: q.Get("level") == "error", search: q.Get("search")}
	number := func(name string) (int64, error) {
		text := q.Get(name)
		if text == "" {
			return 0, nil
		}
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n < 0 {
			return 0, errs.New(errs.InvalidArgument, "%s %q is not a number", name, text)
		}
		return n, nil
	}
	if n, err := number("limit"); err != nil {
		return r, err
	} else if n > 0 {
		r.limit = int(min(n, maxLogLines))
	}
	for _, name := range []string{"start", "cursor"} { // of the older call, and of the newer one
		if n, err := number(name); err != nil {
			return r, err
		} else if n > 0 {
			r.from = time.UnixMilli(n)
		}
	}
	return r, nil
}

// lines returns lines of the log of a sandbox: what its start command printed.
func (c *caller) lines(ctx context.Context, sb *sandbox.Sandbox, r logRange) ([]logEntry, error) {
	st, err := c.sandboxes.Logs(ctx, &sandbox.LogsRequest{Sandbox: sb.GetID()})
	if err != nil {
		return nil, err
	}
	defer st.Close()
	entries := []logEntry{}
	for {
		b, err := st.Recv()
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, err
		}
		for _, l := range b.Lines {
			e := logEntry{Timestamp: l.At, Message: strings.ToValidUTF8(l.Text, "\uFFFD"), Level: "info", Fields: map[string]string{}}
			if l.Stderr != nil && *l.Stderr {
				e.Level = "error"
			}
			late := !r.from.IsZero() && (!r.backward && l.At.Before(r.from) || r.backward && !l.At.Before(r.from))
			if late || r.errors && e.Level != "error" || !strings.Contains(e.Message, r.search) {
				continue
			}
			if len(entries) == r.limit {
				if !r.backward {
					return entries, nil
				}
				entries = slices.Delete(entries, 0, 1)
			}
			entries = append(entries, e)
		}
	}
	if r.backward {
		slices.Reverse(entries)
	}
	return entries, nil
}

func (s *Server) logs(ctx context.Context, c *caller, _ http.ResponseWriter, r *http.Request) (int, any, error) {
	of, err := logRangeOf(r.URL.Query())
	if err != nil {
		return 0, nil, err
	}
	sb, err := c.sandbox(ctx, r.PathValue("id"))
	if err != nil {
		return 0, nil, err
	}
	entries, err := c.lines(ctx, sb, of)
	if err != nil {
		return 0, nil, err
	}
	if strings.HasPrefix(r.URL.Path, "/v2/") {
		return http.StatusOK, map[string]any{"logs": entries}, nil
	}
	old := []oldEntry{}
	for _, e := range entries {
		old = append(old, oldEntry{e.Timestamp, e.Message})
	}
	return http.StatusOK, map[string]any{"logs": old, "logEntries": entries}, nil
}
