package ingress

import (
	"net"

	"github.com/pires/go-proxyproto"

	"miren.dev/runtime/pkg/httpserve"
)

// proxied has clients get their answers to the end. If the ingress is told so,
// connections of trusted proxies begin with a PROXY header (version 1 or 2), which
// names their client. Those of others are taken as they are.
func (in *Ingress) proxied(l net.Listener) net.Listener {
	l = httpserve.Listener(l)
	if !in.cfg.ProxyProtocol {
		return l
	}
	return &proxyproto.Listener{
		Listener: l, ReadHeaderTimeout: in.cfg.ReadHeaderTimeout,
		ConnPolicy: func(o proxyproto.ConnPolicyOptions) (proxyproto.Policy, error) {
			if isTrusted(in.cfg.TrustedProxies, o.Upstream.String()) {
				return proxyproto.REQUIRE, nil
			}
			return proxyproto.SKIP, nil
		},
	}
}

// halfCloser is a connection that can end one direction.
type halfCloser interface{ CloseWrite() error }

// halfOf returns the connection that can end one direction of c, if there is one.
func halfOf(c net.Conn) (halfCloser, bool) {
	if p, ok := c.(*proxyproto.Conn); ok {
		c = p.Raw()
	}
	half, ok := c.(halfCloser)
	return half, ok
}
