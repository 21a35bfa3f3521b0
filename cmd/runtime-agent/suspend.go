package main

import (
	"fmt"
	"os"
	"time"

	"miren.dev/runtime/pkg/agentproto"
)

// Pauses before a suspended agent dials again. A restored agent continues in the middle of one, so they are short at
// first: the snapshot follows within milliseconds.
const (
	suspendedRedial = 2 * time.Millisecond
	suspendedSoon   = 2 * time.Second
)

// suspend makes the agent let go of everything outside the sandbox, for a snapshot: restoring one fails on an open file
// that is not there. The node closes the connection.
func (a *agent) suspend() {
	for _, c := range a.channels.all() {
		c.detach()
	}
	a.spool.hold()
	a.gen.hide()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.suspended, a.suspendedAt = a.token, time.Now()
}

// redialPause returns how long to wait before the next dial, given how long it would be without a snapshot.
func (a *agent) redialPause(d time.Duration) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.suspended != "" && time.Since(a.suspendedAt) < suspendedSoon {
		return suspendedRedial
	}
	return d
}

// connected adopts the configuration with which the node has accepted this agent. It ends a suspension in the sandbox in
// which it began; a restored sandbox waits for its identity.
func (a *agent) connected(c agentproto.Config) {
	a.mu.Lock()
	a.token = c.Token
	suspended, same := a.suspended != "", a.suspended == c.Token
	a.mu.Unlock()
	if !suspended {
		return
	}
	if !same {
		a.claims.replace(base{env: c.Env, dir: c.WorkDir, user: c.User})
		return
	}
	a.resume()
	a.gen.show()
	for _, c := range a.channels.all() {
		c.mu.Lock()
		c.startLinger()
		c.mu.Unlock()
	}
}

// identify gives a restored sandbox its own identity. Channels of the sandbox in the snapshot go on until the node attaches
// to them and leaves again. Denied: the node has to set the host name and to repeat the request.
func (a *agent) identify(m agentproto.Identity) agentproto.Failure {
	a.resume()
	var failure agentproto.Failure
	hostname, files := a.claims.identify(m)
	for _, f := range files {
		if err := replaceIdentity(f); err != nil {
			failure = agentproto.Failure{Kind: agentproto.Wrong, Message: fmt.Sprintf("%s: %v", f.Path, err)}
		}
	}
	if now, err := os.Hostname(); err == nil && hostname != "" && now != hostname {
		return agentproto.Failure{Kind: agentproto.Denied, Message: fmt.Sprintf("the host name is %s", now)}
	}
	a.gen.next() // last: programs that wait for it find the new identity
	return failure
}

// resume opens the log again.
func (a *agent) resume() {
	if err := a.spool.release(); err != nil {
		fmt.Fprintln(os.Stderr, "runtime-agent: log:", err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.suspended = ""
}

// detach makes the channel independent of its connection and of its linger time, until the node attaches to it again.
// A channel that cannot be attached again is closed.
func (c *channel) detach() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.link = nil
	if c.lingerer != nil {
		c.lingerer.Stop()
		c.lingerer = nil
	}
	if c.life == agentproto.LifeOnce {
		go c.close()
	}
}

// hold closes the log's file. Writers wait for release.
func (s *spool) hold() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.held {
		s.held = true
		s.f.Close()
	}
}

// release continues the log that is in the directory now, which after a restore is another one.
func (s *spool) release() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.held {
		return nil
	}
	now, err := openSpool(s.dir, s.limit)
	if err == nil {
		s.f, s.size, s.start, s.older = now.f, now.size, now.start, now.older
	} else {
		s.failed = err
	}
	s.held = false
	s.released.Broadcast()
	return err
}

// whenOpen calls f while the log's directory may have open files.
func (s *spool) whenOpen(f func() error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.held {
		s.released.Wait()
	}
	return f()
}
