package app

import (
	"slices"
	"testing"

	"miren.dev/runtime/api/id"
)

// TestTraffic: the shares add up, a version of an earlier server serves until another one does, and what keeps versions
// from being deleted follows.
func TestTraffic(t *testing.T) {
	s := &AppStatus{ActiveVersion: "ver-1"}
	check := func(what string, active, canary id.AppVersion, weights []int64, serving ...id.AppVersion) {
		t.Helper()
		var got []int64
		for _, x := range s.Shares() {
			got = append(got, x.Weight)
		}
		if s.Active() != active || s.Canary() != canary || !slices.Equal(got, weights) || !slices.Equal(s.Serving, serving) {
			t.Errorf("%s: active %q, canary %q, weights %v, serving %v", what, s.Active(), s.Canary(), got, s.Serving)
		}
		for _, v := range serving {
			if !s.Serves(v) {
				t.Errorf("%s: %s does not serve", what, v)
			}
		}
	}
	check("an earlier server", "ver-1", "", []int64{100})
	if !s.Serves("ver-1") || s.Serves("ver-2") {
		t.Error("an earlier server: the wrong version serves")
	}
	s.Try("ver-2", 10)
	check("tried", "ver-1", "ver-2", []int64{90, 10}, "ver-1", "ver-2")
	s.Try("ver-3", 99)
	check("another one", "ver-1", "ver-3", []int64{1, 99}, "ver-1", "ver-3")
	s.Traffic = append(s.Traffic, TrafficShare{Version: "ver-9", Preview: "old", Host: "old.example"})
	s.Activate("ver-3")
	check("promoted", "ver-3", "", []int64{100, 0}, "ver-3", "ver-9")
	s.Activate("")
	check("none", "", "", []int64{0}, "ver-9")
	s.SetPreview(TrafficShare{Version: "ver-8", Preview: "new", Host: "new.example"})
	s.SetPreview(TrafficShare{Version: "ver-7", Preview: "old", Host: "old.example"})
	s.Activate("ver-4")
	s.Try("ver-5", 20)
	check("with previews", "ver-4", "ver-5", []int64{80, 20, 0, 0}, "ver-4", "ver-5", "ver-7", "ver-8")
	if p := s.Preview("new"); p == nil || p.Version != "ver-8" || len(s.Previews()) != 2 {
		t.Errorf("previews: %+v", s.Previews())
	}
	s.EndPreview("old")
	s.EndPreview("")
	check("a preview ended", "ver-4", "ver-5", []int64{80, 20, 0}, "ver-4", "ver-5", "ver-8")
	if s.Preview("old") != nil || s.Preview("") != nil {
		t.Error("a preview that ended is there")
	}
	if s.ActiveVersion != "" {
		t.Errorf("what the earlier server wrote stays: %q", s.ActiveVersion)
	}
}
