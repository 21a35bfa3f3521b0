package proxy

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
)

// PeerConn is a connection to a sandbox on another node. It ends when that sandbox ends its side:
// the node drops later data.
type PeerConn interface {
	io.ReadWriteCloser
	// CloseWrite ends the data to the sandbox, as shutdown does.
	CloseWrite() error
}

// relayPeer serves a connection to the stand-in of a sandbox on another node.
func (p *Proxy) relayPeer(ctx context.Context, c *conn) {
	to, err := originalDestination(c.TCPConn)
	if err != nil || to == c.LocalAddr().(*net.TCPAddr).AddrPort() { // it was not redirected
		return
	}
	p.mu.Lock()
	c.to, c.peer = to, true // from now on KeepPeers decides about it, too
	g := p.guests[c.guest]
	p.mu.Unlock()
	if g == nil || p.cfg.Peer == nil {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { // the guest may go meanwhile, or lose the permission
		select {
		case <-c.done:
			cancel()
		case <-ctx.Done():
		}
	}()
	far, err := p.cfg.Peer(ctx, g.id, to)
	if err != nil {
		p.cfg.Logger.Debug("no connection to a sandbox on another node", "sandbox", g.id, "address", to, "error", err)
		return
	}
	defer far.Close()
	stop := context.AfterFunc(ctx, func() { far.Close() })
	defer stop()
	if joinPeers(c, far) {
		p.mu.Lock()
		defer p.mu.Unlock()
		c.once.Do(func() { // it ended by itself: no reset
			close(c.done)
			c.TCPConn.Close()
		})
	}
}

// joinPeers copies between a guest and its peer until both have ended, and reports whether
// they ended well. It waits for both directions.
func joinPeers(c *conn, far PeerConn) bool {
	sent := make(chan error, 1)
	go func() {
		_, err := io.Copy(far, c.TCPConn)
		if err == nil {
			err = far.CloseWrite()
		}
		if err != nil { // the guest's connection was reset: end the other direction, too
			far.Close()
		}
		sent <- err
	}()
	_, err := io.Copy(c.TCPConn, far)
	if err == nil {
		err = errors.Join(c.CloseWrite(), c.CloseRead())
	}
	if err != nil {
		far.Close()
		_ = c.SetLinger(0) // a reset: the guest sees that the data ended early
		c.TCPConn.Close()
	}
	return <-sent == nil && err == nil
}

// KeepPeers closes the connections to sandboxes on other nodes that keep does not permit.
// It calls keep with the proxy locked.
func (p *Proxy) KeepPeers(keep func(id string, to netip.Addr) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, g := range p.guests {
		for c := range g.conns {
			if c.peer && !keep(g.id, c.to.Addr()) {
				c.close()
			}
		}
	}
}
