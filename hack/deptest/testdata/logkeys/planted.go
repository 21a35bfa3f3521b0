// Package logkeys has planted violations: each marked line logs with a key that
// has another spelling elsewhere.
package logkeys

import (
	"context"
	"log/slog"
)

type part struct{ logger *slog.Logger }

func (p part) run(ctx context.Context, err error) {
	p.logger.Error("it failed", "err", err)                             // want
	p.logger.Info("it runs", "sandbox", "err", "error", err)            // the value is no key
	p.logger.WarnContext(ctx, "slow", "sandbox_id", 1)                  // want
	p.logger.Info("it runs", slog.String("rev", "1"))                   // want
	p.logger.Info("it runs", slog.String("revision", "1"), "op", "run") // want
	slog.Info("it runs", "retryIn", 1)                                  // want
	p.logger.With("node", "a").Debug("it runs")
	p.logger.With("Node", "a").Debug("it runs") // want
	p.fatal("err", err)
}

func (p part) fatal(...any) {}
