package rpc

import (
	"crypto/tls"
	"time"

	"miren.dev/runtime/pkg/errs"
)

// Recheck asks ServerOptions.Refuse about every open connection and closes the
// refused ones: their calls are cancelled, and end with its error. It does not
// wait. Connections that begin meanwhile are checked too.
func (s *Server) Recheck() {
	if s.opts.Refuse == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	for c, id := range s.conns {
		if err := s.opts.Refuse(id); err != nil {
			c.refuse(err)
			s.wg.Go(func() { c.closeRefused(err) })
		}
	}
}

// refuse ends every call with err, later calls too. The callers do not wait for
// the handlers, which may take longer than the connection stays.
func (c *conn) refuse(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.refused != nil {
		return
	}
	c.refused = err
	b := getBuffer()
	defer putBuffer(b)
	appendError(b, err, Unknown)
	for _, st := range c.streams {
		st.failLocked(err)
		if st.serve != nil {
			c.removeLocked(st)
			c.appendLocked(header{typ: frameReply, id: st.id, flags: flagError, length: len(b.b)}, b.b, nil)
		}
	}
	c.leaveLocked()
}

// closeRefused closes the connection, after a short time in which the answers
// to the ended calls are sent.
func (c *conn) closeRefused(err error) {
	c.goAway()
	t := time.NewTimer(lingerTimeout)
	defer t.Stop()
	select {
	case <-c.whenIdle():
	case <-t.C:
	case <-c.closed:
	}
	c.close(err)
}

// expiryCheck is how often a connection compares the expiry of its certificate with
// the clock, which may be set, or stand still while the machine does.
const expiryCheck = time.Minute

// closeExpired waits until the certificate or key of the connection has expired, and then
// closes the connection as Recheck does.
func (c *conn) closeExpired(id Identity) {
	for left := time.Until(id.Expires); left > 0; left = time.Until(id.Expires) {
		t := time.NewTimer(min(left, expiryCheck))
		select {
		case <-t.C:
		case <-c.closed:
			t.Stop()
			return
		}
	}
	noun, command := id.credential()
	err := errs.New(errs.Unauthenticated, "the %s of %s has expired", noun, id.Name).
		WithHint("ask for a new one (`%s`)", command).With("serial", id.Serial)
	c.refuse(err)
	c.closeRefused(err)
}

// refusing returns cfg with a handshake that fails for identities that
// ServerOptions.Refuse refuses, so that the client gets the error at once.
func (s *Server) refusing(cfg *tls.Config) *tls.Config {
	if s.opts.Refuse == nil {
		return cfg
	}
	cfg = cfg.Clone()
	verify := cfg.VerifyConnection
	cfg.VerifyConnection = func(st tls.ConnectionState) error {
		if verify != nil {
			if err := verify(st); err != nil {
				return err
			}
		}
		return s.opts.Refuse(tlsIdentity(st))
	}
	return cfg
}
