package rpc

import (
	"testing"

	"miren.dev/runtime/testsupport/wait"
)

// killConns closes the server's connections without a message.
func (r *fixture) killConns() {
	r.srv.mu.Lock()
	defer r.srv.mu.Unlock()
	for c := range r.srv.conns {
		if t, ok := c.nc.(*tlsConn); ok {
			_ = t.under.Conn.Close()
		} else {
			_ = c.nc.Close()
		}
	}
}

func (r *fixture) conns() int {
	r.srv.mu.Lock()
	defer r.srv.mu.Unlock()
	a := &r.srv.admission
	return len(a.handshakes) + a.count[classLocal] + a.count[classCertified] + a.count[classAnonymous]
}

// serverConn returns a connection of the server, which registers it a moment
// after its client has connected.
func (r *fixture) serverConn(t testing.TB) (found *conn) {
	t.Helper()
	wait.For(t, "a connection of the server", func() bool {
		r.srv.mu.Lock()
		defer r.srv.mu.Unlock()
		for c := range r.srv.conns {
			found = c
		}
		return found != nil
	})
	return found
}

// settled reports whether no call is under way on c and every byte of its
// window was given back.
func (c *conn) settled() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.streams) == 0 && c.recvAvail+c.recvDebt == c.lim.hello().connWindow && c.growth == int64(c.lim.Growth) &&
		len(c.bulk) == 0 && len(c.starved) == 0 && c.assembly.TryAcquire(int64(c.lim.Assembly)) && release(c)
}

func release(c *conn) bool {
	c.assembly.Release(int64(c.lim.Assembly))
	return true
}

// quiet fails the test unless both ends of the client's connection settle with
// nothing lost.
func (r *fixture) quiet(t testing.TB, cl *Client) {
	t.Helper()
	for name, c := range map[string]*conn{"client": cl.cur.Load(), "server": r.serverConn(t)} {
		ok := false
		defer func() {
			if !ok {
				c.mu.Lock()
				defer c.mu.Unlock()
				t.Logf("%s: %d calls, window %d + %d of %d, growth %d of %d, bulk %d, starved %d", name, len(c.streams),
					c.recvAvail, c.recvDebt, c.lim.hello().connWindow, c.growth, c.lim.Growth, len(c.bulk), len(c.starved))
			}
		}()
		wait.For(t, name+" to be quiet", c.settled)
		ok = true
	}
	cc, sc := cl.cur.Load(), r.serverConn(t)
	wait.For(t, "send windows to be whole", func() bool {
		return credit(cc)+debt(sc) == sc.lim.hello().connWindow && credit(sc)+debt(cc) == cc.lim.hello().connWindow
	})
}

func credit(c *conn) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sendCredit
}

func debt(c *conn) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.recvDebt
}
