//go:build !linux

package rpc

import (
	"net"
	"runtime"

	"miren.dev/runtime/pkg/errs"
)

// socketIdentity refuses every peer: servers run on Linux, and only there the
// credentials of a unix socket's peer are read.
func socketIdentity(*net.UnixConn) (Identity, error) {
	return Identity{}, errs.New(errs.FailedPrecondition, "the peers of unix sockets are not known on %s", runtime.GOOS).
		WithHint("run the server on Linux")
}
