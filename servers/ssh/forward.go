package sshserver

import (
	"context"
	"io"
	"net/netip"
	"strings"
	"sync"

	"golang.org/x/crypto/ssh"

	"miren.dev/runtime/api/sandbox"
)

// directRequest is the payload of a channel of type direct-tcpip (RFC 4254,
// section 7.2).
type directRequest struct {
	Host       string
	Port       uint32
	Origin     string
	OriginPort uint32
}

// isSandbox reports whether a host, as the client names it, is the sandbox
// itself.
func (c *conn) isSandbox(host string) bool {
	if strings.EqualFold(host, "localhost") || host == string(c.sandbox) || host == c.ssh.User() {
		return true
	}
	a, err := netip.ParseAddr(host)
	return err == nil && a.IsLoopback()
}

// forward connects the client with a port of the sandbox (ssh -L, -D, -W).
func (c *conn) forward(ctx context.Context, nc ssh.NewChannel) {
	var r directRequest
	switch err := ssh.Unmarshal(nc.ExtraData(), &r); {
	case err != nil:
		_ = nc.Reject(ssh.ConnectionFailed, "the request cannot be read")
		return
	case c.refused != nil:
		_ = nc.Reject(ssh.Prohibited, c.refused.Error())
		return
	case !c.isSandbox(r.Host) || r.Port < 1 || r.Port > sandbox.MaxPort:
		_ = nc.Reject(ssh.Prohibited, "only ports of the sandbox itself (localhost) can be reached")
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	st, err := sandbox.NewSandboxesClient(c.rpc).Dial(ctx, &sandbox.DialRequest{Sandbox: c.sandbox, Port: int64(r.Port)})
	if err != nil {
		_ = nc.Reject(ssh.ConnectionFailed, err.Error())
		return
	}
	defer st.Close()
	ch, requests, err := nc.Accept()
	if err != nil {
		return
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer ch.Close() // so that the copy below ends
	defer st.Close()
	wg.Go(func() { ssh.DiscardRequests(requests) })
	wg.Go(func() {
		switch _, err := io.Copy(st.Writer(), ch); err {
		case nil:
			_ = st.CloseSend() // a call that has ended shows below
		case io.EOF: // the call has ended; its output is still read
		default:
			_ = st.Close()
		}
	})
	_, _ = io.Copy(ch, st.Reader()) // its failure, or the port's refusal, is the end of the connection
}
