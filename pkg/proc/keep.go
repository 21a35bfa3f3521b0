package proc

import (
	"context"
	"log/slog"
	"time"
)

// Bounds of the pause before a child is started again after it ended or failed
// to start.
const (
	restartDelay    = 100 * time.Millisecond
	maxRestartDelay = 5 * time.Second
)

// Keep calls ensure to start or adopt the child, waits for its end and begins
// again, until ctx ends; it then leaves the child running.
func Keep(ctx context.Context, name string, log *slog.Logger, ensure func(context.Context) (*Process, error)) {
	for delay := restartDelay; ; {
		p, err := ensure(ctx)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			log.Error(name+" does not start", "error", err, "retry_in", delay)
			delay = min(2*delay, maxRestartDelay)
		} else {
			delay = restartDelay
			select {
			case <-ctx.Done():
				return
			case <-p.Done():
			}
			log.Warn(name+" ended; starting it again", "pid", p.PID())
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(delay):
		}
	}
}
