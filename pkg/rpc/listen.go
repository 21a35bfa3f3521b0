package rpc

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"time"

	"miren.dev/runtime/pkg/errs"
)

// ListenUnix listens on a socket that only its owner may connect to. It
// replaces the socket of a dead server. AlreadyExists if a process listens
// there. Closing the listener removes the socket.
func ListenUnix(path string) (net.Listener, error) {
	c, err := net.DialTimeout("unix", path, time.Second)
	switch {
	case err == nil:
		_ = c.Close()
		return nil, errs.New(errs.AlreadyExists, "another server listens on %s", path).WithHint("stop it first: `r server stop`")
	case errors.Is(err, fs.ErrNotExist):
	case errors.Is(err, connRefused):
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, errs.New(errs.FailedPrecondition, "remove the socket of a dead server: %w", err)
		}
	default:
		return nil, errs.New(errs.Unavailable, "check for a server on %s: %w", path, err)
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, errs.New(errs.FailedPrecondition, "listen on %s: %w", path, err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		_ = l.Close()
		return nil, errs.New(errs.FailedPrecondition, "protect %s: %w", path, err)
	}
	return l, nil
}
