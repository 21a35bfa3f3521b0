package rpc

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/testsupport/need"
)

// TestDenyByDefault calls every method without credentials: only the public
// ones answer, and no handler of another is entered.
func TestDenyByDefault(t *testing.T) {
	r := newFixture(t, "tls", Limits{})
	r.client.TLS = r.pki.client(t, "")
	cl := r.dial(t)
	for _, m := range r.srv.Methods() {
		if m.Permission == Public {
			if resp, err := call(t, cl, mPublic, &echoMsg{}); err != nil || resp.Text != "anonymous" {
				t.Errorf("%s: %q, %v", m.Full, resp.Text, err)
			}
			continue
		}
		if m.Stream == StreamNone {
			err := cl.Call(t.Context(), &m, &None{}, &None{})
			wantClass(t, err, errs.Unauthenticated, NotStarted)
			continue
		}
		st, err := cl.Open(t.Context(), &m, &None{})
		if err != nil {
			t.Fatal(err)
		}
		wantClass(t, st.RecvMsg(&None{}), errs.Unauthenticated, NotStarted)
		_ = st.Close()
	}
	if n := r.echo.calls.Load() + int64(len(r.echo.entered)); n != 0 {
		t.Errorf("handlers were entered %d times", n)
	}
	if lim := r.serverConn(t).lim.MaxCalls; lim != anonymousCalls {
		t.Errorf("an anonymous peer may have %d calls open", lim)
	}
}

func TestRolesGrantPermissions(t *testing.T) {
	r := newFixture(t, "tls", Limits{})
	for _, c := range []struct {
		roles       []string
		read, write bool
	}{
		{[]string{RoleAdmin}, true, true},
		{[]string{"viewer"}, true, false},
		{[]string{"deployer", "viewer"}, true, false},
		{[]string{"unheard-of"}, false, false},
		{nil, false, false},
	} {
		r.client.TLS = r.pki.client(t, "someone", c.roles...)
		cl := r.dial(t)
		for m, allowed := range map[*Method]bool{mEcho: c.read, mWrite: c.write} {
			_, err := call(t, cl, m, &echoMsg{})
			if allowed && err != nil {
				t.Errorf("%v %s: %v", c.roles, m.Name, err)
			} else if !allowed {
				wantClass(t, err, errs.PermissionDenied, NotStarted)
			}
		}
		if resp, err := call(t, cl, mPublic, &echoMsg{}); err != nil || resp.Text != "someone" {
			t.Errorf("%v: %q, %v", c.roles, resp.Text, err)
		}
	}
}

// helperSocket is set in the process that TestSocketCredentials starts as
// another user.
const helperSocket = "RUNTIME_RPC_TEST_SOCKET"

// TestSocketCredentials: on the unix socket root is admin, another user has no
// role.
func TestSocketCredentials(t *testing.T) {
	if path := os.Getenv(helperSocket); path != "" {
		cl, err := Dial(t.Context(), path, ClientOptions{RetryFor: -1})
		if err != nil {
			t.Fatal(err)
		}
		defer cl.Close()
		if resp, err := call(t, cl, mPublic, &echoMsg{}); err != nil || resp.Text != "uid:65534" {
			t.Errorf("public: %q, %v", resp.Text, err)
		}
		_, err = call(t, cl, mEcho, &echoMsg{})
		wantClass(t, err, errs.PermissionDenied, NotStarted)
		return
	}
	r := newFixture(t, "unix", Limits{})
	if _, err := call(t, r.dial(t), mWrite, &echoMsg{}); err != nil {
		t.Errorf("the server's own user: %v", err)
	}
	need.Root(t)
	dir, err := os.MkdirTemp("", "rpc") // a directory that other users may enter
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	sock, exe := filepath.Join(dir, "s"), filepath.Join(dir, "test")
	l, err := net.Listen("unix", sock)
	if err != nil {
		t.Fatal(err)
	}
	r.serve(t, l)
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(exe, self, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{dir, sock} {
		if err := os.Chmod(p, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(exe, "-test.run", "^TestSocketCredentials$")
	cmd.Env = append(os.Environ(), helperSocket+"="+sock, "TMPDIR="+dir)
	cmd.Dir = dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
