package logview

import (
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/pkg/logline"
)

// record is a line of an app as --json prints it.
type record struct {
	TS      time.Time      `json:"ts"`
	App     string         `json:"app"`
	Version int64          `json:"version,omitempty"`
	Service string         `json:"service,omitempty"`
	Sandbox id.Sandbox     `json:"sandbox"`
	Stream  string         `json:"stream"`
	Level   string         `json:"level,omitempty"`
	Message string         `json:"message"`
	Fields  map[string]any `json:"fields,omitempty"`
	Missed  int64          `json:"missed_bytes,omitempty"`
}

func recordOf(app string, l *sandbox.LogLine) record {
	p := logline.Parse(l.Text)
	r := record{TS: l.At, App: app, Service: l.Service, Sandbox: l.Sandbox, Stream: "stdout", Level: p.Level.String(), Message: p.Message, Fields: p.Fields}
	if l.Version != nil {
		r.Version = *l.Version
	}
	if l.Stderr != nil && *l.Stderr {
		r.Stream = "stderr"
	}
	if l.Missed != nil {
		r.Missed = *l.Missed
	}
	return r
}

var levelStyles = map[logline.Level]console.Style{
	logline.Trace: console.Dim, logline.Debug: console.Dim, logline.Info: console.Green, logline.Warn: console.Yellow,
	logline.Error: console.Red, logline.Fatal: console.Red,
}

// structured returns a line of JSON as its level, message and fields; other lines as
// they are.
func (v *View) structured(text string) string {
	p := logline.Parse(text)
	if p.Fields == nil {
		return text
	}
	c := v.Env.Console
	var b strings.Builder
	if p.Level != logline.None {
		b.WriteString(c.Paint(levelStyles[p.Level], strings.ToUpper(p.Level.String())) + " ")
	}
	b.WriteString(oneLine(p.Message))
	for _, k := range slices.Sorted(maps.Keys(p.Fields)) {
		b.WriteString(" " + c.Paint(console.Dim, oneLine(k)+"=") + fieldText(p.Fields[k]))
	}
	return b.String()
}

// fieldText returns the value of a field: a plain string as it is, other values as JSON.
func fieldText(v any) string {
	if s, ok := v.(string); ok {
		if s == "" || strings.ContainsAny(s, " \"=") || strconv.Quote(s) != `"`+s+`"` {
			return strconv.Quote(s)
		}
		return s
	}
	b, err := json.Marshal(v)
	if err != nil { // it was decoded from JSON
		return "?"
	}
	return string(b)
}

// oneLine replaces line breaks, which JSON may contain escaped.
func oneLine(s string) string {
	return strings.NewReplacer("\r\n", "⏎", "\n", "⏎", "\r", "⏎").Replace(s)
}
