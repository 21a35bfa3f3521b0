// Package waits has planted violations: each marked loop is a private copy of
// the wait helper.
package waits

import (
	"context"
	"testing"
	"time"
)

func until(t testing.TB, cond func() bool) {
	deadline := time.Now().Add(time.Second)
	for !cond() { // want
		if time.Now().After(deadline) {
			t.Fatal("not in time")
		}
		time.Sleep(time.Millisecond)
	}
}

func ticks(t testing.TB, cond func() bool) {
	tick := time.NewTicker(time.Millisecond)
	for deadline := time.Now().Add(time.Second); !cond(); <-tick.C { // want
		if time.Now().After(deadline) {
			t.Fatal("not in time")
		}
	}
}

func eventually(t testing.TB, f func() error) {
	deadline := time.After(time.Second)
	for tick := time.Tick(time.Millisecond); ; { // want
		err := f()
		if err == nil {
			return
		}
		select {
		case <-tick:
		case <-deadline:
			t.Fatal(err)
		}
	}
}

func answered(ctx context.Context, ask func() error) (err error) {
	for ctx.Err() == nil { // want
		if err = ask(); err == nil {
			break
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Millisecond):
		}
	}
	return err
}

func tries(cond func() bool) bool {
	for range 100 { // want
		if cond() {
			return true
		}
		<-time.After(time.Millisecond)
	}
	return false
}

func switches(state func() string) {
	for { // want
		switch state() {
		case "done":
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// The rest is allowed: none of these loops ends because a condition holds.

func disturb(stop <-chan struct{}, t testing.TB, f func() error) {
	for {
		select {
		case <-stop:
			return
		case <-time.After(time.Millisecond):
		}
		if err := f(); err != nil {
			t.Error(err)
			return
		}
	}
}

func paced(ctx context.Context, f func()) {
	tick := time.NewTicker(time.Millisecond)
	for ctx.Err() == nil {
		<-tick.C
		f()
	}
}

func slowly(t testing.TB, f func() error) {
	for range 10 {
		if err := f(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
	}
}

func timeouts(t testing.TB, c chan int) {
	for had := 0; had < 10; {
		select {
		case n := <-c:
			had += n
		case <-time.After(time.Second):
			t.Fatal("no more")
		}
	}
}
