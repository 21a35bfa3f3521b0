package httpserve

import (
	"bytes"
	"context"
	"log"
	"log/slog"
)

// ErrorLog returns the ErrorLog of an http.Server. The panic of a handler is a bug, and logged
// as an error with its stack. The other messages are about clients, and logged for debugging.
func ErrorLog(l *slog.Logger) *log.Logger { return log.New(errorLog{l}, "", 0) }

type errorLog struct{ logger *slog.Logger }

// panicked is in the message of net/http about the panic of a handler, with HTTP/1.1 and HTTP/2.
var panicked = []byte(": panic serving ")

// Write implements io.Writer.
func (e errorLog) Write(message []byte) (int, error) {
	level := slog.LevelDebug
	if bytes.Contains(message, panicked) {
		level = slog.LevelError
	}
	e.logger.Log(context.Background(), level, string(bytes.TrimSpace(message)))
	return len(message), nil
}
