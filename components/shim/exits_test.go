package main

import "testing"

func TestExitsAreOfTheRightProcess(t *testing.T) {
	e := newExits()
	e.recordEnd(9, 3) // ended before it was known which process it is
	if p := e.expect(9); !p.hasEnded() || p.status != 3 {
		t.Errorf("process that had ended: %+v", p)
	}
	p := e.expect(10)
	e.recordEnd(12, 1) // some other child
	if p.hasEnded() {
		t.Error("ended by another process's end")
	}
	e.recordEnd(10, 7)
	e.recordEnd(10, 9) // a later process with the same id
	if !p.hasEnded() || p.status != 7 {
		t.Errorf("ended process: %+v", p)
	}
	e.forget(p)
	again := e.expect(10)
	e.forget(p) // of the old one
	e.recordEnd(10, 4)
	if again.status != 4 {
		t.Errorf("process with the id of an old one: %+v", again)
	}
	for pid := range 2 * maxEarly {
		e.recordEnd(1000+pid, 0)
	}
	if len(e.early) > maxEarly || len(e.oldest) > maxEarly {
		t.Errorf("%d early ends are kept", len(e.early))
	}
}
