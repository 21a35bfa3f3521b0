package disks

import (
	"context"
	"log/slog"
	"os"
	"testing"
	"time"

	"miren.dev/runtime/testsupport/wait"
)

// TestSecondDaemonEnds: a daemon for a directory that another one has returns an error.
func TestSecondDaemonEnds(t *testing.T) {
	run, err := os.MkdirTemp("", "rt-disks-") // a short path for sockets
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(run)
	cfg := Config{StateDir: t.TempDir(), RunDir: run, Logger: slog.New(slog.DiscardHandler), CloseTimeout: time.Minute}
	ctx, cancel := context.WithCancel(t.Context())
	first := make(chan error, 1)
	go func() { first <- Run(ctx, cfg) }()
	wait.NoError(t, "the first daemon serves", func() error {
		_, err := os.Stat(Socket(run))
		return err
	})
	second := make(chan error, 1)
	go func() { second <- Run(ctx, cfg) }()
	if err := wait.Receive(t, "the end of the second daemon", second); err == nil {
		t.Error("it has ended without an error")
	}
	cancel()
	if err := wait.Receive(t, "the end of the first daemon", first); err != nil {
		t.Error(err)
	}
}
