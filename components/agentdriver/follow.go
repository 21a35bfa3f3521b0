package agentdriver

import (
	"context"
	"log/slog"
	"time"
)

// Delays before events are asked for again.
const (
	followDelay    = 50 * time.Millisecond
	maxFollowDelay = time.Second
)

// Follow calls once, which follows the events of the service with this name, again
// whenever it returns, until ctx ends.
func Follow(ctx context.Context, service string, logger *slog.Logger, once func(context.Context) error) error {
	delay := followDelay
	for ctx.Err() == nil {
		began := time.Now()
		if err := once(ctx); ctx.Err() == nil {
			logger.Debug("events interrupted", "service", service, "error", err)
		}
		if time.Since(began) > maxFollowDelay {
			delay = followDelay
		}
		select {
		case <-ctx.Done():
		case <-time.After(delay):
			delay = min(2*delay, maxFollowDelay)
		}
	}
	return nil
}
