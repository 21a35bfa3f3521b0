package rpc

import (
	"net"
	"slices"
	"time"

	"miren.dev/runtime/pkg/errs"
)

// ConnLimits bound the number of connections of a server by class, so that one
// class never takes the room of another. Zero fields have the defaults.
type ConnLimits struct {
	Local     int // over unix sockets and within the process; 1024
	Certified int // over TLS with a client certificate, or with an API key (Adopt); 1024
	Anonymous int // over TLS without one; 64
	// Handshakes bounds the connections in their TLS handshake; 128. A further connection closes the oldest of them:
	// silent peers cannot keep others out.
	Handshakes int
	// AnonymousIdle is how long an anonymous connection lasts after its last
	// call began; 10 s. It then ends the calls under way.
	AnonymousIdle time.Duration
}

func (l ConnLimits) withDefaults() ConnLimits {
	for _, f := range []struct {
		v   *int
		def int
	}{{&l.Local, 1024}, {&l.Certified, 1024}, {&l.Anonymous, 64}, {&l.Handshakes, 128}} {
		if *f.v == 0 {
			*f.v = f.def
		}
	}
	if l.AnonymousIdle == 0 {
		l.AnonymousIdle = 10 * time.Second
	}
	return l
}

func (l ConnLimits) validate() error {
	if l.Local < 1 || l.Certified < 1 || l.Anonymous < 1 || l.Handshakes < 1 || l.AnonymousIdle < 0 {
		return errs.New(errs.InvalidArgument, "rpc: limits of connections must be positive")
	}
	return nil
}

// class is the class in which a connection counts.
type class string

const (
	classHandshake class = "handshake"
	classLocal     class = "local"
	classCertified class = "certified"
	classAnonymous class = "anonymous"
)

func (l *ConnLimits) of(c class) int {
	switch c {
	case classLocal:
		return l.Local
	case classCertified:
		return l.Certified
	case classAnonymous:
		return l.Anonymous
	}
	return l.Handshakes
}

// classOf returns the class of a connection at its beginning.
func classOf(nc net.Conn) class {
	if _, ok := nc.(*net.UnixConn); ok {
		return classLocal
	}
	return classHandshake
}

// admission counts connections by class. The server's mutex guards it.
type admission struct {
	limits     ConnLimits
	count      map[class]int
	handshakes []net.Conn // oldest first
}

// begin admits a new connection. It reports false if its class is full.
func (a *admission) begin(nc net.Conn, c class) bool {
	if c != classHandshake {
		return a.enter(c)
	}
	if len(a.handshakes) >= a.limits.Handshakes {
		_ = a.handshakes[0].Close() // ends its handshake
		a.handshakes = a.handshakes[1:]
	}
	a.handshakes = append(a.handshakes, nc)
	return true
}

// identified moves a connection from its handshake to the class that its
// identity gives it, if that has room.
func (a *admission) identified(nc net.Conn, id Identity) (class, bool) {
	a.forget(nc)
	c := classAnonymous
	if id.known() {
		c = classCertified
	}
	return c, a.enter(c)
}

func (a *admission) enter(c class) bool {
	if a.count[c] >= a.limits.of(c) {
		return false
	}
	a.count[c]++
	return true
}

func (a *admission) leave(c class) { a.count[c]-- }

// forget drops a connection that is in its handshake.
func (a *admission) forget(nc net.Conn) {
	if i := slices.Index(a.handshakes, nc); i >= 0 {
		a.handshakes = slices.Delete(a.handshakes, i, i+1)
	}
}

var errIdle = errs.New(errs.Unavailable, "an anonymous connection was idle")

// closeIdle ends the connection once no call has begun on it for d.
func (c *conn) closeIdle(d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	for {
		select {
		case <-c.closed:
			return
		case <-t.C:
		}
		left := d - (time.Since(c.began) - time.Duration(c.lastCall.Load()))
		if left <= 0 {
			c.goAway()
			c.close(errIdle)
			return
		}
		t.Reset(left)
	}
}
