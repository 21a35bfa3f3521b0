package clientconfig

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"strings"
	"syscall"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/rpc"
	"miren.dev/runtime/pkg/rpc/upgrade"
)

// Connect connects to the server before it returns. It returns the error of
// NotRunning if no server runs on this machine.
func (t *Target) Connect(ctx context.Context) (*rpc.Client, error) {
	if strings.HasPrefix(t.Address, "http") {
		return t.connectByKey(ctx)
	}
	c, err := rpc.Dial(ctx, t.Address, rpc.ClientOptions{TLS: t.TLS})
	if err != nil && t.Local && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED)) {
		return nil, NotRunning(t.Source)
	}
	if err != nil && !t.Local && errs.HintOf(err) == "" {
		return nil, errs.Wrap(err, "connect to the server of %s", t.Source)
	}
	return c, err
}

// connectByKey connects through the HTTP API.
func (t *Target) connectByKey(ctx context.Context) (*rpc.Client, error) {
	if t.Key == "" {
		return nil, errs.New(errs.Unauthenticated, "there is no API key for %s", t.Address).WithHint("`r auth login %s` stores one", t.Address)
	}
	base, err := upgrade.ParseURL(t.Address)
	if err != nil {
		return nil, err
	}
	return rpc.DialBy(ctx, t.Address, func(ctx context.Context) (net.Conn, error) {
		return upgrade.Dial(ctx, base, t.TLS, t.Key)
	}, rpc.ClientOptions{})
}
