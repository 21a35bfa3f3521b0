package rpc

import (
	"context"
	"errors"
	"net"
	"time"

	"miren.dev/runtime/pkg/errs"
)

// Subject is what a call changes.
type Subject struct {
	Kind string `json:"kind"`
	ID   string `json:"id"`           // or a name, as the request has it
	Op   string `json:"op,omitempty"` // what happens to it, where the method does not say so
}

// Peer is where a call comes from.
type Peer struct {
	Class   string // "local", "certified" (by a certificate or an API key) or "anonymous"
	Address string // without port; empty: a unix socket. With class local: of the peer for which LocalFor calls
}

// AuditCall is what an Auditor is told of a call.
type AuditCall struct {
	Method    MethodInfo
	Identity  Identity
	Peer      Peer
	RequestID string
	Began     time.Time
	Target    *Target // nil: the request says nothing of a project, or was not read
	// Subjects are those of the request, or what SetSubjects has replaced them with.
	Subjects []Subject
}

// Auditor records calls.
type Auditor interface {
	// Begin is told of a call of a method with MethodInfo.Audit whose request was
	// read and permitted, before its handler goes on. The function that it returns
	// is called with the call's error before the caller has the answer; an error
	// that it returns is the answer of a call that had none.
	Begin(ctx context.Context, c *AuditCall) (end func(err error) error)
	// Refused is told of a call, of any method, that ended with class
	// Unauthenticated or PermissionDenied and of which Begin was not told. It must
	// not block.
	Refused(c *AuditCall, err error)
}

// SetSubjects replaces what the record of the call says that it changes, for
// handlers that know more than the request. It is for the handler's goroutine.
func SetSubjects(ctx context.Context, subjects ...Subject) {
	if c, ok := ctx.Value(keyCall).(*serverCall); ok && c.audit != nil {
		c.audit.Subjects = subjects
	}
}

// newAuditCall describes the call to the auditor; req is nil if it was not read.
func (sc *serverCall) newAuditCall(req any) *AuditCall {
	c := &AuditCall{Method: sc.method.MethodInfo, Identity: sc.identity, Peer: sc.peer, RequestID: sc.requestID, Began: time.Now()}
	if req == nil {
		return c
	}
	if sc.method.Target != nil {
		t := sc.method.Target(req)
		c.Target = &t
	}
	if sc.method.Subject != nil {
		c.Subjects = []Subject{sc.method.Subject(req)}
	}
	return c
}

// beginAudit tells the auditor of a call that is about to be carried out.
func (sc *serverCall) beginAudit(req any) {
	if sc.s.opts.Auditor != nil && sc.method.Audit {
		sc.audit = sc.newAuditCall(req)
		sc.endAudit = sc.s.opts.Auditor.Begin(sc.traced, sc.audit)
	}
}

// audited tells the auditor how a call ended, and returns the answer.
func (sc *serverCall) audited(outcome Outcome, err error) (Outcome, error) {
	auditor := sc.s.opts.Auditor
	if auditor == nil || sc.method == nil {
		return outcome, err
	}
	var bad *decodeError
	switch {
	case sc.endAudit != nil:
	case errs.Is(err, errs.Unauthenticated) || errs.Is(err, errs.PermissionDenied):
		auditor.Refused(sc.newAuditCall(sc.request), err)
		return outcome, err
	case errors.As(err, &bad):
		sc.beginAudit(nil) // a request that makes no sense changes nothing, but is an attempt
	}
	if sc.endAudit == nil {
		return outcome, err
	}
	if e := sc.endAudit(err); e != nil && err == nil {
		return Unknown, e // the caller must not take it for done and recorded
	}
	return outcome, err
}

// peerOf describes the other end of a connection.
func peerOf(nc net.Conn, cl class) Peer {
	p := Peer{Class: string(cl)}
	if a, ok := nc.RemoteAddr().(*net.TCPAddr); ok {
		p.Address = a.IP.String()
	}
	return p
}
