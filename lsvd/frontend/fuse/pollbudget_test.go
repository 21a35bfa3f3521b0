package fuse

import (
	"testing"
	"time"
)

// TestPollingPausesUnderOtherLoad leaves off for longer and longer while others want the processor
// more than what is found is worth, and begins anew once it was worth it.
func TestPollingPausesUnderOtherLoad(t *testing.T) {
	now := time.Unix(1000, 0)
	var p pollBudget
	lose := func(d time.Duration) time.Duration {
		p.lost(now, d)
		return p.until.Sub(now)
	}
	if off := lose(pollCredit * pollGain); off > 0 {
		t.Errorf("leaves off for %v at the first loss", off)
	}
	for want := pollOff; want <= 4*pollOffMost; want *= 2 {
		if off := lose((pollCredit + 1) * pollGain); off != min(want, pollOffMost) {
			t.Errorf("leaves off for %v, not %v", off, min(want, pollOffMost))
		}
		now = p.until
	}
	for range 2 * pollCreditMost {
		p.got()
	}
	if off := lose((pollCredit + pollCreditMost) * pollGain); off > 0 {
		t.Errorf("leaves off for %v, though as much was found", off)
	}
	if off := lose(pollGain); off != pollOff {
		t.Errorf("leaves off for %v, not %v", off, pollOff)
	}
}

// TestShortWaitsMakeCloseRequests: requests follow each other closely after so many short waits, until
// more than every third is long, or several are carried out at a time.
func TestShortWaitsMakeCloseRequests(t *testing.T) {
	var r arrivalRate
	after := func(short, long int) bool {
		for range long {
			r.waited(2 * pollMost)
		}
		for range short {
			r.waited(pollMost)
		}
		return r.high()
	}
	if after(pollAfter-1, 0) || !after(1, 0) {
		t.Error("not after so many short waits")
	}
	for range 100 {
		if !after(3, 1) {
			t.Fatal("ends though every fourth wait is long")
		}
	}
	high := true
	for range 100 {
		high = after(1, 1)
	}
	if high {
		t.Error("goes on though every second wait is long")
	}
	after(4*pollAfter, 0)
	if r.overlap(); r.high() {
		t.Error("goes on though several are carried out at a time")
	}
}
