package sandbox

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"syscall"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/pkg/errs"
)

// Prober checks whether a sandbox serves. It returns nil if the sandbox does;
// otherwise an error whose text is the same for the same cause, so that it is
// recorded once.
type Prober func(ctx context.Context, address string, p sandbox.Probe) error

// network is the Prober over the network.
func network(ctx context.Context, address string, p sandbox.Probe) error {
	target := net.JoinHostPort(address, strconv.FormatInt(p.Port, 10))
	return check(ctx, target, p, func(ctx context.Context) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", target)
	})
}

// check checks over a connection that dial makes whether a sandbox serves.
// target is the host of its URL.
func check(ctx context.Context, target string, p sandbox.Probe, dial func(context.Context) (net.Conn, error)) error {
	if p.Kind != sandbox.ProbeKindHTTP {
		conn, err := dial(ctx)
		if err != nil {
			return plain(err, p.Port)
		}
		return conn.Close()
	}
	// Without the slash, the path could be read as part of another host.
	if !strings.HasPrefix(p.Path, "/") {
		return fmt.Errorf("health_path %q does not begin with /", p.Path)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+target+p.Path, nil)
	if err != nil {
		return fmt.Errorf("health_path %q is not a path", p.Path)
	}
	req.Header.Set("User-Agent", "runtime-probe")
	// It follows no redirects: a redirect is an answer. The other side is hostile.
	prober := &http.Client{
		Transport: &http.Transport{
			DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
			DisableKeepAlives: true, MaxResponseHeaderBytes: 64 << 10,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	resp, err := prober.Do(req)
	if err != nil {
		return plain(err, p.Port)
	}
	resp.Body.Close()
	if resp.StatusCode >= 400 {
		return fmt.Errorf("GET %s answered %s", p.Path, strings.TrimSpace(fmt.Sprint(resp.StatusCode, " ", http.StatusText(resp.StatusCode))))
	}
	return nil
}

// plain returns why there was no answer, without details that differ from one
// attempt to the next, such as the local port.
func plain(err error, port int64) error {
	var errno syscall.Errno
	switch {
	case errors.Is(err, syscall.ECONNREFUSED), errs.Is(err, errs.FailedPrecondition): // the kernel's, or the agent's
		return notListening(port)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("no answer on port %d in time", port)
	case errors.As(err, &errno):
		return fmt.Errorf("port %d: %w", port, errno)
	}
	return fmt.Errorf("no answer in HTTP on port %d", port)
}
