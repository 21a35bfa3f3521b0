package webhook

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"syscall"
	"time"

	"miren.dev/runtime/api/webhook"
	"miren.dev/runtime/components/network/ranges"
	"miren.dev/runtime/pkg/errs"
)

const (
	dialTimeout = 5 * time.Second
	// maxHeader and maxAnswer bound what is read of an answer.
	maxHeader = 64 << 10
	maxAnswer = 64 << 10
)

// newClient returns the client for receivers. It connects to addresses of the
// Internet and in allow only, follows no redirect, and uses no proxy.
func newClient(allow []netip.Prefix) *http.Client {
	d := &net.Dialer{Timeout: dialTimeout, ControlContext: func(_ context.Context, _, address string, _ syscall.RawConn) error {
		return permit(address, allow)
	}}
	return &http.Client{
		Timeout:       webhook.AttemptTimeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{
			DialContext: d.DialContext, ForceAttemptHTTP2: true, TLSHandshakeTimeout: dialTimeout, MaxResponseHeaderBytes: maxHeader,
			MaxIdleConns: 100, MaxIdleConnsPerHost: 2, IdleConnTimeout: 30 * time.Second, DisableCompression: true,
		},
	}
}

// permit returns PermissionDenied for the address of a connection that no receiver
// may have. The name was resolved before, so a name that means another address the
// next time does not help.
func permit(address string, allow []netip.Prefix) error {
	ok, err := ranges.Outward(address, allow)
	if err != nil {
		return errs.New(errs.Unavailable, "the address of a connection: %w", err)
	}
	if !ok {
		return errRefused
	}
	return nil
}

// errRefused does not name the address, which may be that of a private name.
var errRefused = errs.New(errs.PermissionDenied, "webhooks may not reach the receiver: its address is not public").
	WithHint("an operator can allow its network: webhooks.allow")
