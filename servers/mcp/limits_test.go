package mcpserver

import (
	"log/slog"
	"testing"
	"time"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/pkg/errs"
)

// TestLimits: the limits of a session are defaults and maxima of its sandboxes.
func TestLimits(t *testing.T) {
	s, err := newSession(Options{Client: away{}, MaxFile: 10, Limits: Limits{
		Templates: []string{"base"}, CPUMillis: 500, MemoryBytes: 1 << 30, DiskBytes: 5, Open: true, TTL: time.Hour, RunTimeout: time.Minute,
	}})
	if err != nil {
		t.Fatal(err)
	}
	req, err := s.request(networkInput{}, "base:2")
	if err != nil || *req.CPUMillis != 500 || *req.MemoryBytes != 1<<30 || *req.DiskBytes != 5 || *req.TTL != time.Hour || req.Egress != nil {
		t.Errorf("%+v, %v", req, err)
	}
	if req, err := s.request(networkInput{Network: networkNone}, "base"); err != nil || req.Egress == nil || req.Egress.Mode != sandbox.EgressModeNone {
		t.Errorf("without a network: %+v, %v", req, err)
	}
	if _, err := s.request(networkInput{}, "python"); !errs.Is(err, errs.PermissionDenied) {
		t.Errorf("another template: %v", err)
	}
	for _, in := range []createInput{{CPU: 0.6}, {MemoryMiB: 1025}} {
		if err := s.resources(&req, &in); !errs.Is(err, errs.PermissionDenied) {
			t.Errorf("%+v: %v", in, err)
		}
	}
	if err := s.resources(&req, &createInput{CPU: 0.2, MemoryMiB: 512, TTLSeconds: 7200}); err != nil || *req.CPUMillis != 200 || *req.MemoryBytes != 512<<20 || *req.TTL != time.Hour {
		t.Errorf("%+v, %v", req, err)
	}
	if d, err := s.limit(&processInput{}); err != nil || d != time.Minute {
		t.Errorf("time of a process: %s, %v", d, err)
	}
	if s.fits(10) != nil || !errs.Is(s.fits(11), errs.ResourceExhausted) {
		t.Error("the size of files is not bounded")
	}
}

// TestSessionsOfOneCaller are counted from their begin, so that those that begin at the same time have the bound too.
func TestSessionsOfOneCaller(t *testing.T) {
	h, err := NewHandler(HandlerOptions{Options: Options{Logger: slog.New(slog.DiscardHandler)}})
	if err != nil {
		t.Fatal(err)
	}
	alice, bob := &Caller{ID: "alice", Client: away{}}, &Caller{ID: "bob", Client: away{}}
	var first *session
	for i := range maxSessions {
		s, err := h.begin(alice, nil)
		if err != nil {
			t.Fatal(i, err)
		}
		first = s
	}
	if _, err := h.begin(alice, nil); !errs.Is(err, errs.ResourceExhausted) {
		t.Errorf("one more session of the caller: %v", err)
	}
	if _, err := h.begin(bob, nil); err != nil {
		t.Errorf("a session of another caller: %v", err)
	}
	if h.keep(&visit{caller: alice, session: first}) {
		t.Error("a session without a client is kept")
	}
	if _, err := h.begin(alice, nil); err != nil {
		t.Errorf("after a session that did not begin: %v", err)
	}
}
