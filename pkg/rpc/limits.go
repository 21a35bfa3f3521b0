package rpc

import (
	"time"

	"miren.dev/runtime/pkg/errs"
)

// minWindow is the smallest window a side may announce, in bytes.
const minWindow = 4 << 10

// Limits bound the memory and work that one connection can cause on this side.
// Zero fields have the defaults.
type Limits struct {
	MaxCalls        int           // calls open at a time; 1024
	MaxMessage      int           // bytes of a message; 16 MiB
	StreamWindow    int           // bytes of one call received and not read, at first; 64 KiB
	MaxStreamWindow int           // up to which the window of a fast reader grows; 2 MiB
	Growth          int           // bytes by which all windows together grow; 32 MiB
	Assembly        int           // bytes of messages larger than a frame that are assembled at a time; 64 MiB
	Backlog         int           // bytes of replies and answers that the peer leaves unread, then this side gives it up; 64 MiB
	KeepAlive       time.Duration // after this long without a frame this side sends a ping, after three it gives the peer up; 10 s
	WriteTimeout    time.Duration // this side gives up a peer that reads nothing for this long; 30 s
}

// Limits of connections without identity.
const (
	anonymousCalls   = 32
	anonymousMessage = 64 << 10
	anonymousBacklog = 2 << 20 // more than the replies to all calls at a time
)

func (l Limits) forNobody() Limits {
	l.MaxCalls, l.MaxMessage = min(l.MaxCalls, anonymousCalls), min(l.MaxMessage, anonymousMessage)
	l.Growth, l.Assembly, l.Backlog = 0, 4*l.MaxMessage, min(l.Backlog, anonymousBacklog)
	return l
}

func (l Limits) withDefaults() Limits {
	def := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	def(&l.MaxCalls, 1024)
	def(&l.MaxMessage, 16<<20)
	def(&l.StreamWindow, 64<<10)
	def(&l.MaxStreamWindow, max(2<<20, l.StreamWindow))
	def(&l.Growth, 32<<20)
	def(&l.Assembly, max(64<<20, l.MaxMessage))
	def(&l.Backlog, 64<<20)
	if l.KeepAlive == 0 {
		l.KeepAlive = 10 * time.Second
	}
	if l.WriteTimeout == 0 {
		l.WriteTimeout = 30 * time.Second
	}
	return l
}

func (l Limits) validate() error {
	switch {
	case l.MaxCalls < 1 || l.MaxMessage < 1 || l.Backlog < 1 || l.Growth < 0 || l.KeepAlive < 0 || l.WriteTimeout < 0:
		return errs.New(errs.InvalidArgument, "rpc: limits must be positive")
	case l.StreamWindow < minWindow || l.MaxStreamWindow < l.StreamWindow:
		return errs.New(errs.InvalidArgument, "rpc: stream windows must be at least %d and at most the largest", minWindow)
	case l.Assembly < l.MaxMessage:
		return errs.New(errs.InvalidArgument, "rpc: assembly must be at least the largest message")
	}
	return nil
}

func (l Limits) hello() hello {
	return hello{
		version: version, minVersion: version,
		streamWindow: int64(l.StreamWindow),
		connWindow:   int64(l.StreamWindow)*int64(l.MaxCalls) + int64(l.Growth),
		maxCalls:     int64(l.MaxCalls), maxMessage: int64(l.MaxMessage),
	}
}
