package clientconfig

import (
	"context"
	"errors"
	"io/fs"
	"syscall"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/rpc"
)

// Connect connects to the server before it returns. It returns the error of
// NotRunning if no server runs on this machine.
func (t *Target) Connect(ctx context.Context) (*rpc.Client, error) {
	c, err := rpc.Dial(ctx, t.Address, rpc.ClientOptions{TLS: t.TLS})
	if err != nil && t.Local && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED)) {
		return nil, NotRunning(t.Source)
	}
	if err != nil && !t.Local && errs.HintOf(err) == "" {
		return nil, errs.Wrap(err, "connect to the server of %s", t.Source)
	}
	return c, err
}
