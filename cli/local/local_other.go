//go:build !linux

package local

import (
	"context"
	"log/slog"
	"runtime"

	"miren.dev/runtime/pkg/errs"
)

// Open returns FailedPrecondition: only Linux runs sandboxes.
func Open(context.Context, Options) (*Installation, error) {
	return nil, errs.New(errs.FailedPrecondition, "%s runs no sandboxes of its own", runtime.GOOS).
		WithHint("name a server with --server or --cluster (`r cluster add` adds one)")
}

// Keep does nothing.
func (i *Installation) Keep(context.Context, *slog.Logger) {}

// Recover does nothing.
func (i *Installation) Recover(context.Context) error { return nil }
