package logline

import (
	"encoding/json"
	"testing"

	"miren.dev/runtime/pkg/errs"
)

func TestParse(t *testing.T) {
	for _, tc := range []struct{ in, level, message, fields string }{
		{"plain text", "", "plain text", "null"},
		{`{"level":"warn","msg":"disk is full","time":"2026-01-01T00:00:00Z","free":0}`, "warn", "disk is full", `{"free":0}`},
		{`{"level":50,"msg":"it broke","id":12345678901234567890}`, "error", "it broke", `{"id":12345678901234567890}`},
		{`{"severity":"CRITICAL","message":"down"}`, "fatal", "down", `{}`},
		{`{"log.level":"notice","message":"up"}`, "info", "up", `{}`},
		{`{"levelname":"WARNING","event":"late","nested":{"a":[1]}}`, "warn", "late", `{"nested":{"a":[1]}}`},
		{`{"level":"odd","count":1}`, "", `{"level":"odd","count":1}`, "null"},
		{`{"level":"info","count":1}`, "info", `{"level":"info","count":1}`, "null"}, // no message: the line as it is
		{`{"level":"info"`, "", `{"level":"info"`, "null"},
		{`{"level":"info"} {"level":"info"}`, "", `{"level":"info"} {"level":"info"}`, "null"},
		{`time=2026 level=ERROR msg="no"`, "error", `time=2026 level=ERROR msg="no"`, "null"},
		{`lvl="debug" msg=x`, "debug", `lvl="debug" msg=x`, "null"},
		{`sealevel=warn`, "", `sealevel=warn`, "null"},
	} {
		l := Parse(tc.in)
		f, err := json.Marshal(l.Fields)
		if l.Level.String() != tc.level || l.Message != tc.message || string(f) != tc.fields || err != nil {
			t.Errorf("%s: %s, %q, %s", tc.in, l.Level, l.Message, f)
		}
		if got := LevelOf(tc.in); got != l.Level {
			t.Errorf("%s: LevelOf says %s, Parse %s", tc.in, got, l.Level)
		}
	}
}

func TestLevels(t *testing.T) {
	if l, err := ParseLevel("Warning"); err != nil || l != Warn {
		t.Errorf("%v, %v", l, err)
	}
	if _, err := ParseLevel("loud"); !errs.Is(err, errs.InvalidArgument) {
		t.Error(err)
	}
	if None.Or(true) != Error || None.Or(false) != Info || Debug.Or(true) != Debug || Level(99).String() != "" {
		t.Error("levels of lines that say none")
	}
}
