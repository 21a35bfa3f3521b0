package server

import (
	"bytes"
	"context"
	"log/slog"
	"testing"

	"miren.dev/runtime/pkg/config"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/instance"
)

// TestEndAllEndsWithItsContext: a server that was told to stop does not go on
// trying to end its installation.
func TestEndAllEndsWithItsContext(t *testing.T) {
	dir := t.TempDir()
	in, err := instance.Open(dir+"/state", dir+"/run")
	if err != nil {
		t.Fatal(err)
	}
	if err := in.Lock(); err != nil { // so that every try fails
		t.Fatal(err)
	}
	defer in.Unlock()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var log bytes.Buffer
	err = endAll(ctx, &config.Config{StateDir: in.StateDir, RunDir: dir + "/run"}, slog.New(slog.NewTextHandler(&log, nil)))
	if !errs.Is(err, errs.FailedPrecondition) || log.Len() > 0 {
		t.Errorf("%v, after %s", err, log.String())
	}
}
