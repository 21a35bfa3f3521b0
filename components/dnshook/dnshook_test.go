package dnshook

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/testsupport/wait"
)

// script writes a command.
func script(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "hook")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestCommandGetsTheRecord(t *testing.T) {
	out := filepath.Join(t.TempDir(), "out")
	h := Hook{Command: []string{script(t, `echo "$@" >>`+out), "--zone", "a b"}}
	if err := h.Present(t.Context(), "_acme-challenge.example.com", "$value"); err != nil {
		t.Fatal(err)
	}
	if err := h.Cleanup(t.Context(), "_acme-challenge.example.com", "$value"); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(out)
	const want = "--zone a b present _acme-challenge.example.com $value\n--zone a b cleanup _acme-challenge.example.com $value\n"
	if err != nil || string(b) != want {
		t.Errorf("%q %v", b, err)
	}
}

func TestFailureHasTheEndOfTheOutput(t *testing.T) {
	err := Hook{Command: []string{script(t, `head -c 100000 /dev/zero | tr '\0' x; echo; echo the zone is locked >&2; exit 3`)}}.Present(t.Context(), "n", "v")
	if !errs.Is(err, errs.Unavailable) || !strings.Contains(err.Error(), "the zone is locked") || !strings.Contains(err.Error(), "exit status 3") || len(err.Error()) > 1000 {
		t.Error(err)
	}
	if err := (Hook{Command: []string{"/none"}}).Present(t.Context(), "n", "v"); err == nil || !strings.Contains(err.Error(), "/none") {
		t.Error(err)
	}
	if err := (Hook{}).Present(t.Context(), "n", "v"); !errs.Is(err, errs.FailedPrecondition) {
		t.Error(err)
	}
}

// TestSlowCommandEnds with what it started.
func TestSlowCommandEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	begun := filepath.Join(t.TempDir(), "begun")
	done := make(chan error, 1)
	go func() {
		done <- Hook{Command: []string{script(t, "sleep 600 & touch "+begun+"; wait")}}.Present(ctx, "n", "v")
	}()
	wait.NoError(t, "the command begins", func() error {
		_, err := os.Stat(begun)
		return err
	})
	cancel()
	if err := wait.Receive(t, "the end of the call", done); err == nil || !strings.Contains(err.Error(), "canceled") {
		t.Error(err)
	}
}
