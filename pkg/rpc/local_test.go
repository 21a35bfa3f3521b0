package rpc

import (
	"context"
	"net"
	"testing"

	"miren.dev/runtime/pkg/errs"
)

// refusedPeers records the peers of refused calls.
type refusedPeers struct{ peers chan Peer }

func (refusedPeers) Begin(context.Context, *AuditCall) func(error) error {
	return func(error) error { return nil }
}
func (r refusedPeers) Refused(c *AuditCall, _ error) { r.peers <- c.Peer }

// TestLocalForHasTheAddressOfItsPeer: the audit gets the address for which a
// server of another protocol calls, and the identity decides.
func TestLocalForHasTheAddressOfItsPeer(t *testing.T) {
	audit := refusedPeers{make(chan Peer, 1)}
	srv, err := NewServer(ServerOptions{Auditor: audit})
	if err != nil {
		t.Fatal(err)
	}
	defer srv.Close()
	srv.Register(echoService, newEchoServer())
	cl := srv.LocalFor(Identity{}, &net.TCPAddr{IP: net.IPv4(192, 0, 2, 7), Port: 4711})
	defer cl.Close()
	if err := cl.Call(t.Context(), &mEcho.MethodInfo, &None{}, &None{}); !errs.Is(err, errs.Unauthenticated) {
		t.Errorf("without identity: %v", err)
	}
	if p := <-audit.peers; p != (Peer{Class: "local", Address: "192.0.2.7"}) {
		t.Errorf("%+v", p)
	}
}
