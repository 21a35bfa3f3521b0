package aio

import (
	"bytes"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestCollectorIsReplacedAndResumes has somebody else take what has completed for a while, who then
// goes away without a word, and then says that he does.
func TestCollectorIsReplacedAndResumes(t *testing.T) {
	content := make([]byte, 1<<20)
	rand.NewChaCha8([32]byte{3}).Read(content)
	fd := open(t, content)
	var end sync.WaitGroup
	rng := rand.New(rand.NewPCG(1, 3))
	begin := func(n int) {
		reqs := make([]*Request, n)
		for i := range reqs {
			off := rng.Int64N(int64(len(content))/Align) * Align
			r := &reads{t: t, want: content[off:][:Align], n: Align, end: &end}
			r.req = Request{FD: fd, P: aligned(Align), Off: off, Completion: r}
			reqs[i] = &r.req
		}
		end.Add(n)
		if k := Begin(reqs); k != n {
			t.Fatalf("%d of %d reads were begun", k, n)
		}
	}
	defer StopPolling()
	for taken, deadline := 0, time.Now().Add(20*time.Second); taken < 100; {
		if time.Now().After(deadline) {
			t.Fatalf("only %d times something was taken", taken)
		}
		begin(16)
		for processQueue().busy.Load() > 0 {
			if Poll() {
				taken++
			}
		}
		end.Wait()
	}

	Poll() // and no more
	for range 4 {
		begin(16)
		end.Wait()
	}
	if !processQueue().poller.active.Load() {
		t.Error("he that did not come back is not expected any more")
	}

	StopPolling()
	begin(16)
	end.Wait()
	if Poll(); !processQueue().poller.active.Load() {
		t.Error("nobody is expected to come back")
	}
	StopPolling()
}

// TestCollectorsComeAndGo has some come and go while others begin reads and wait for some.
func TestCollectorsComeAndGo(t *testing.T) {
	content := make([]byte, 1<<20)
	rand.NewChaCha8([32]byte{4}).Read(content)
	fd := open(t, content)
	var stop atomic.Bool
	var takers, wg, begun sync.WaitGroup
	for g := range 2 {
		takers.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(g), 4))
			for !stop.Load() {
				for range rng.IntN(100) {
					Poll()
				}
				StopPolling()
			}
		})
	}
	for g := range 8 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(g), 5))
			for range 100 {
				off := rng.Int64N(int64(len(content))/Align) * Align
				r := &reads{t: t, want: content[off:][:Align], n: Align, end: &begun}
				r.req = Request{FD: fd, P: aligned(Align), Off: off, Completion: r}
				begun.Add(1)
				if Begin([]*Request{&r.req}) == 0 {
					begun.Done()
				}
				p := aligned(Align)
				if n, err := Read(fd, p, off); n != Align || err != nil || !bytes.Equal(p, content[off:][:Align]) {
					t.Errorf("%d: %d bytes, %v", off, n, err)
				}
			}
		})
	}
	wg.Wait()
	begun.Wait()
	stop.Store(true)
	takers.Wait()
	if n := processQueue().busy.Load(); n != 0 {
		t.Errorf("%d reads seem to be under way", n)
	}
}

// TestPollNothing asks where nothing was ever read, or nothing is under way.
func TestPollNothing(t *testing.T) {
	if Poll() {
		t.Error("took what nobody began")
	}
	StopPolling()
	fd := open(t, make([]byte, Align))
	if n, err := unix.Pread(fd, aligned(Align), 0); n != Align || err != nil {
		t.Fatal(n, err)
	}
	if Poll() {
		t.Error("took what nobody began")
	}
	StopPolling()
}
