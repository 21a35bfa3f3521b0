package main

import (
	"testing"

	"gvisor.dev/gvisor/pkg/shim/v1/proc"
)

func TestExitsCorrect(t *testing.T) {
	e := &exits{processes: map[int]*process{}}
	from, to := make(chan proc.Exit), make(chan proc.Exit)
	go e.correct(from, to, func(id string) int {
		return map[string]int{"sandbox": 10, "forgotten": 11}[id]
	})
	e.expect(10)
	for _, c := range []struct {
		name     string
		reported proc.Exit
		reaped   int // status of process 10; negative when it runs on
		want     int
	}{
		{"known status", proc.Exit{ID: "sandbox", Status: 3}, -1, 3},
		{"not the first of its sandbox", proc.Exit{ID: "other", Status: statusUnknown}, -1, statusUnknown},
		{"nothing known of the process", proc.Exit{ID: "forgotten", Status: statusUnknown}, -1, statusUnknown},
		{"lost status", proc.Exit{ID: "sandbox", Status: statusUnknown}, 7, 7},
		{"lost status, asked again", proc.Exit{ID: "sandbox", Status: statusUnknown}, 9, 7},
	} {
		from <- c.reported
		if c.reaped >= 0 {
			e.note(12, 1) // some other child
			e.note(10, c.reaped)
		}
		if got := <-to; got.Status != c.want || got.ID != c.reported.ID {
			t.Errorf("%s: %+v, want status %d", c.name, got, c.want)
		}
	}
	e.forget(10)
	if got := e.wait(10, statusUnknown); got != statusUnknown {
		t.Errorf("forgotten process: status %d", got)
	}
}
