package server

import (
	"context"
	"testing"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/rpc"
)

// auditCount counts what an rpc.Auditor is told.
type auditCount struct{ ended, refused int }

func (a *auditCount) Begin(context.Context, *rpc.AuditCall) func(error) error {
	return func(error) error { a.ended++; return nil }
}

func (a *auditCount) Refused(*rpc.AuditCall, error) { a.refused++ }

// TestFailedJoinsCountAsRefused: anybody who reaches the listener for runners can
// call Join, and must not fill the history with failures.
func TestFailedJoinsCountAsRefused(t *testing.T) {
	var count auditCount
	a := &runnerAudit{&count}
	failure := errs.New(errs.Unauthenticated, "the token is not valid")
	call := func(id rpc.Identity, err error) {
		t.Helper()
		c := &rpc.AuditCall{Method: rpc.MethodInfo{Service: "runner.Gateway", Name: "Join", Full: "runner.Gateway/Join"}, Identity: id}
		if err := a.Begin(t.Context(), c)(err); err != nil {
			t.Error(err)
		}
	}
	call(rpc.Identity{}, failure)
	if count != (auditCount{refused: 1}) {
		t.Errorf("after a failure: %+v", count)
	}
	call(rpc.Identity{}, nil)
	call(rpc.Identity{Name: "node-1", How: "certificate"}, failure)
	if count != (auditCount{refused: 1, ended: 2}) {
		t.Errorf("after a success, and a failure of a runner: %+v", count)
	}
}
