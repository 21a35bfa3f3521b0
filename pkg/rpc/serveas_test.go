package rpc

import (
	"net"
	"path/filepath"
	"testing"

	"miren.dev/runtime/pkg/errs"
)

// TestServeAsGivesItsIdentityOnly: also for root and the server's own user.
func TestServeAsGivesItsIdentityOnly(t *testing.T) {
	srv, err := NewServer(ServerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	r := &fixture{srv: srv, echo: newEchoServer(), target: filepath.Join(t.TempDir(), "s"), client: ClientOptions{RetryFor: -1}}
	srv.Register(echoService, r.echo)
	l, err := net.Listen("unix", r.target)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- srv.ServeAs(l, Identity{Name: "reader", Roles: []string{"viewer"}, How: "socket"}) }()
	t.Cleanup(func() {
		srv.Close()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	cl := r.dial(t)
	if resp, err := call(t, cl, mPublic, &echoMsg{}); err != nil || resp.Text != "reader" {
		t.Errorf("%q, %v", resp.Text, err)
	}
	if _, err := call(t, cl, mEcho, &echoMsg{}); err != nil {
		t.Error(err)
	}
	_, err = call(t, cl, mWrite, &echoMsg{})
	wantClass(t, err, errs.PermissionDenied, NotStarted)

	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := srv.ServeAs(tcp, Identity{Name: "reader", How: "socket"}); !errs.Is(err, errs.InvalidArgument) {
		t.Errorf("over TCP: %v", err)
	}
}
