package ingress

import (
	"context"
	"errors"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/pkg/errs"
)

// listen opens the addresses: a predecessor's own sockets where it has one of the
// address, so that no connection is lost that waits in it. Only a predecessor may
// have sockets that overlap with a new one (SO_REUSEPORT). Any other listener is an
// error.
func listen(ctx context.Context, cfg Config, pred *predecessor) (plain, secure []net.Listener, err error) {
	var shared []string
	if pred != nil {
		shared = pred.shared
	}
	var out []net.Listener
	for i, addr := range slices.Concat(cfg.Addrs, cfg.HTTPSAddrs) {
		key := "ingress.http_address"
		if i >= len(cfg.Addrs) {
			key = "ingress.https_address"
		}
		l := pred.listener(addr)
		if l == nil {
			l, err = listenOne(ctx, addr, key, shared)
		}
		if err != nil {
			for _, l := range out {
				l.Close()
			}
			return nil, nil, err
		}
		out = append(out, l)
	}
	return out[:len(cfg.Addrs)], out[len(cfg.Addrs):], nil
}

func listenOne(ctx context.Context, addr, key string, shared []string) (net.Listener, error) {
	// Without SO_REUSEPORT, this fails if any other process listens on the
	// address.
	probe, err := net.Listen("tcp", addr)
	if err == nil {
		addr = probe.Addr().String() // port 0 has become a real port number
		probe.Close()
	} else if !errors.Is(err, unix.EADDRINUSE) || !slices.ContainsFunc(shared, func(s string) bool { return overlaps(s, addr) }) {
		e := errs.New(errs.FailedPrecondition, "listen on %s: %w", addr, err)
		if errors.Is(err, unix.EADDRINUSE) {
			e = e.WithHint("another program uses this port; set %s to a free one", key)
		}
		return nil, e
	}
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var serr error
		if err := c.Control(func(fd uintptr) {
			serr = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
		}); err != nil {
			return err
		}
		return serr
	}}
	l, err := lc.Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, errs.New(errs.FailedPrecondition, "listen on %s: %w", addr, err)
	}
	return l, nil
}

func sameAddress(a, b string) bool {
	x, y, ok := addresses(a, b)
	return ok && x.Port == y.Port && (x.IP.Equal(y.IP) || unspecified(x.IP) && unspecified(y.IP))
}

// overlaps reports whether connections to one address can reach a listener of the
// other.
func overlaps(a, b string) bool {
	x, y, ok := addresses(a, b)
	return ok && x.Port == y.Port && (x.IP.Equal(y.IP) || unspecified(x.IP) || unspecified(y.IP))
}

func unspecified(ip net.IP) bool { return ip == nil || ip.IsUnspecified() }

func addresses(a, b string) (x, y *net.TCPAddr, ok bool) {
	x, err := net.ResolveTCPAddr("tcp", a)
	if err != nil {
		return nil, nil, false
	}
	y, err = net.ResolveTCPAddr("tcp", b)
	return x, y, err == nil
}

// adminListener opens the admin socket. The newest process owns it.
type adminListener struct {
	*net.UnixListener
	path string
	info os.FileInfo
}

func listenAdmin(path string) (*adminListener, error) {
	if path == "" {
		return nil, nil
	}
	// Create it under another name first, then rename it over the old one, so
	// that clients always find a process.
	tmp := filepath.Join(filepath.Dir(path), ".ingress-admin")
	_ = os.Remove(tmp)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: tmp, Net: "unix"})
	if err != nil {
		return nil, errs.New(errs.FailedPrecondition, "admin socket: %w", err)
	}
	l.SetUnlinkOnClose(false)
	err = os.Chmod(tmp, 0o600)
	if err == nil {
		err = os.Rename(tmp, path) // it is a socket, so package atomicfile does not fit
	}
	var info os.FileInfo
	if err == nil {
		info, err = os.Lstat(path)
	}
	if err != nil {
		l.Close()
		_ = os.Remove(tmp)
		return nil, errs.New(errs.FailedPrecondition, "admin socket: %w", err)
	}
	return &adminListener{UnixListener: l, path: path, info: info}, nil
}

// remove deletes the socket if it still belongs to this process. A process that
// gave up root may not; the next ingress then replaces the socket.
func (a *adminListener) remove() {
	if now, err := os.Lstat(a.path); err == nil && os.SameFile(now, a.info) {
		_ = os.Remove(a.path)
	}
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
