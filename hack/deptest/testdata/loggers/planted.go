// Package loggers has planted violations: each marked line names a logger as
// others do not.
package loggers

import "log/slog"

type config struct {
	Log       *slog.Logger // want
	AccessLog *slog.Logger // says which
}

type server struct {
	log    *slog.Logger // want
	logger *slog.Logger
	lines  []*slog.Logger
}
