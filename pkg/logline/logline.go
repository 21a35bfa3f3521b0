// Package logline finds the structure of lines that programs log: the level, the
// message and the fields of a line of JSON, and the level of a line of logfmt.
package logline

import (
	"encoding/json"
	"strings"

	"miren.dev/runtime/pkg/errs"
)

// Level is how serious a line is. Greater is more serious.
type Level uint8

// Levels. None: the line says none.
const (
	None Level = iota
	Trace
	Debug
	Info
	Warn
	Error
	Fatal
)

var levelNames = [...]string{"", "trace", "debug", "info", "warn", "error", "fatal"}

// String returns its name; "" for None.
func (l Level) String() string {
	if int(l) < len(levelNames) {
		return levelNames[l]
	}
	return ""
}

// Or returns the level that counts for a line: a line that says none is an error on
// stderr, and information on stdout.
func (l Level) Or(stderr bool) Level {
	switch {
	case l != None:
		return l
	case stderr:
		return Error
	}
	return Info
}

// ParseLevel returns the level that a user names.
func ParseLevel(name string) (Level, error) {
	if l := named(name); l != None {
		return l, nil
	}
	return None, errs.New(errs.InvalidArgument, "there is no level %q", name).WithHint("levels are %s", strings.Join(levelNames[1:], ", "))
}

// named returns the level that a program names.
func named(name string) Level {
	if len(name) > 16 {
		return None
	}
	switch strings.ToLower(name) {
	case "trace", "verbose", "silly":
		return Trace
	case "debug":
		return Debug
	case "info", "information", "informational", "notice", "http":
		return Info
	case "warn", "warning":
		return Warn
	case "error", "err":
		return Error
	case "fatal", "panic", "dpanic", "critical", "crit", "alert", "emergency", "emerg":
		return Fatal
	}
	return None
}

// numbered returns the level of the numbers of pino and bunyan.
func numbered(n float64) Level {
	switch {
	case n < 10 || n > 100:
		return None
	case n < 20:
		return Trace
	case n < 30:
		return Debug
	case n < 40:
		return Info
	case n < 50:
		return Warn
	case n < 60:
		return Error
	}
	return Fatal
}

// Names that programs give the parts of a line.
var (
	levelKeys   = []string{"level", "severity", "lvl", "levelname", "log.level"}
	messageKeys = []string{"message", "msg", "event"}
	timeKeys    = []string{"time", "timestamp", "ts", "@timestamp"}
)

// Line is the structure of a line.
type Line struct {
	Level   Level
	Message string         // the whole line if it is not JSON
	Fields  map[string]any // of JSON, without level, message and time; nil: none
}

// Parse returns the structure of a line.
func Parse(text string) Line {
	fields, ok := object(text)
	if !ok {
		return Line{Level: logfmtLevel(text), Message: text}
	}
	l := Line{Message: text}
	for _, k := range levelKeys {
		if level := levelOf(fields[k]); level != None {
			l.Level = level
			delete(fields, k)
			break
		}
	}
	for _, k := range messageKeys {
		if m, ok := fields[k].(string); ok {
			l.Message = m
			delete(fields, k)
			for _, k := range timeKeys { // the time of the line is known; it would be said twice
				delete(fields, k)
			}
			l.Fields = fields
			break
		}
	}
	return l
}

// LevelOf returns the level that a line says. It is Parse without the rest.
func LevelOf(text string) Level {
	if !strings.HasPrefix(text, "{") {
		return logfmtLevel(text)
	}
	var v struct {
		Level, Severity, Lvl, Levelname json.RawMessage
		Dotted                          json.RawMessage `json:"log.level"`
	}
	if !mentionsLevel(text) || json.Unmarshal([]byte(text), &v) != nil {
		return None
	}
	for _, raw := range []json.RawMessage{v.Level, v.Severity, v.Lvl, v.Levelname, v.Dotted} {
		var x any
		if raw != nil && json.Unmarshal(raw, &x) == nil {
			if l := levelOf(x); l != None {
				return l
			}
		}
	}
	return None
}

// mentionsLevel spares most lines without a level the decoding.
func mentionsLevel(text string) bool {
	for _, k := range levelKeys {
		if strings.Contains(text, `"`+k+`"`) {
			return true
		}
	}
	return false
}

func object(text string) (map[string]any, bool) {
	if !strings.HasPrefix(text, "{") || !strings.HasSuffix(strings.TrimRight(text, " \r\t"), "}") {
		return nil, false
	}
	var m map[string]any
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	if d.Decode(&m) != nil || d.More() {
		return nil, false
	}
	return m, true
}

func levelOf(v any) Level {
	switch x := v.(type) {
	case string:
		return named(x)
	case float64:
		return numbered(x)
	case json.Number:
		f, err := x.Float64()
		if err != nil {
			return None
		}
		return numbered(f)
	}
	return None
}

// logfmtLevel returns the level of a line such as `time=... level=warn msg=...`.
func logfmtLevel(text string) Level {
	for _, k := range [...]string{"level=", "lvl="} {
		i := strings.Index(text, k)
		if i < 0 || i > 0 && text[i-1] != ' ' {
			continue
		}
		rest := strings.TrimPrefix(text[i+len(k):], `"`)
		if end := strings.IndexAny(rest, "\" \t\r"); end >= 0 {
			rest = rest[:end]
		}
		if l := named(rest); l != None {
			return l
		}
	}
	return None
}
