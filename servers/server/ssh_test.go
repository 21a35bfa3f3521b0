package server

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	gossh "golang.org/x/crypto/ssh"

	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/server"
	"miren.dev/runtime/domain/projects"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/rpc"
	sshserver "miren.dev/runtime/servers/ssh"
	"miren.dev/runtime/testsupport/wait"
)

// sshEnv is the server's front with its SSH gateway, without the machine.
type sshEnv struct {
	*frontEnv
	address string
}

func newSSHEnv(t *testing.T) *sshEnv {
	t.Helper()
	e := newFrontEnv(t)
	if err := projects.Ensure(t.Context(), e.c.store, projects.Default); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- e.f.acceptSSH(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	wait.For(t, "the gateway listens", func() bool { return e.f.sshAddress.Load() != nil })
	return &sshEnv{e, l.Addr().String()}
}

func newSigner(t *testing.T) gossh.Signer {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	s, err := gossh.NewSignerFromKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func publicLine(s gossh.Signer) string { return string(gossh.MarshalAuthorizedKey(s.PublicKey())) }

// login connects an SSH client.
func (e *sshEnv) login(user string, key gossh.Signer) (*gossh.Client, error) {
	e.t.Helper()
	c, err := gossh.Dial("tcp", e.address, &gossh.ClientConfig{
		User: user, Auth: []gossh.AuthMethod{gossh.PublicKeys(key)}, HostKeyCallback: gossh.InsecureIgnoreHostKey(), Timeout: time.Minute,
	})
	if err == nil {
		e.t.Cleanup(func() { _ = c.Close() })
	}
	return c, err
}

// answer logs in and returns what a session says; the sandbox does not run, so
// even a permitted one fails.
func (e *sshEnv) answer(user string, key gossh.Signer) string {
	e.t.Helper()
	c, err := e.login(user, key)
	if err != nil {
		e.t.Fatal(err)
	}
	s, err := c.NewSession()
	if err != nil {
		e.t.Fatal(err)
	}
	out, err := s.CombinedOutput("true")
	if exit, ok := err.(*gossh.ExitError); !ok || exit.ExitStatus() != 255 {
		e.t.Errorf("as %s: %v", user, err)
	}
	return string(out)
}

func (e *sshEnv) add(key gossh.Signer, name string, ttl time.Duration, roles ...string) {
	e.t.Helper()
	_, err := server.NewSSHClient(e.root()).AddKey(e.t.Context(), &server.AddSSHKeyRequest{Name: name, PublicKey: publicLine(key), Roles: roles, TTL: &ttl})
	if err != nil {
		e.t.Fatal(err)
	}
}

// certificate logs an identity in with a certificate for a sandbox.
func (e *sshEnv) certificate(cl *rpc.Client, x *tenant) gossh.Signer {
	e.t.Helper()
	key := newSigner(e.t)
	resp, err := server.NewSSHClient(cl).IssueCertificate(e.t.Context(), &server.IssueSSHCertificateRequest{Sandbox: x.sandbox.GetID(), PublicKey: publicLine(key)})
	if err != nil {
		e.t.Fatal(err)
	}
	return e.certified(key, resp.Certificate)
}

func (e *sshEnv) certified(key gossh.Signer, cert string) gossh.Signer {
	e.t.Helper()
	pub, _, _, _, err := gossh.ParseAuthorizedKey([]byte(cert))
	if err != nil {
		e.t.Fatal(err)
	}
	s, err := gossh.NewCertSigner(pub.(*gossh.Certificate), key)
	if err != nil {
		e.t.Fatal(err)
	}
	return s
}

// TestSSHKeysLogIn: a key logs in while it is permitted and not expired.
func TestSSHKeysLogIn(t *testing.T) {
	e := newSSHEnv(t)
	x := e.newTenant("shop")
	key, expired := newSigner(t), newSigner(t)
	if _, err := e.login(string(x.sandbox.ID), key); err == nil {
		t.Error("an unknown key logs in")
	}
	e.add(key, "alice", time.Hour, "deployer@shop")
	if got := e.answer(string(x.sandbox.ID), key); strings.Contains(got, "that this key may use") {
		t.Errorf("a permitted key: %q", got)
	}
	e.add(expired, "late", time.Minute, rpc.RoleAdmin)
	k, err := e.f.sshKeys.Find(gossh.FingerprintSHA256(expired.PublicKey()))
	if err != nil {
		t.Fatal(err)
	}
	past := *k
	past.Spec.ExpiresAt = time.Now().Add(-time.Second)
	e.f.sshKeys.Put(&past)
	if _, err := e.login(string(x.sandbox.ID), expired); err == nil {
		t.Error("an expired key logs in")
	}
	wait.For(t, "the refused log-ins are recorded with their address", func() bool {
		for _, r := range e.records(entity.HistoryQuery{}) {
			if r.Action == "server.SSH/Connect" && r.Actor == "anonymous" && r.Outcome == string(errs.Unauthenticated) && strings.Contains(string(r.Detail), "127.0.0.1") {
				return true
			}
		}
		return false
	})
}

// TestSSHTellsNothingOfOtherSandboxes: the answer for a sandbox that a key may
// not use is that for one that does not exist.
func TestSSHTellsNothingOfOtherSandboxes(t *testing.T) {
	e := newSSHEnv(t)
	e.newTenant("own")
	foreign := e.newTenant("foreign")
	for _, role := range []string{"deployer@own", "viewer", "viewer@foreign"} {
		key := newSigner(t)
		e.add(key, "someone", time.Hour, role)
		var answers []string
		for _, user := range []string{string(foreign.sandbox.ID), "sb-aaaaaaaaaaaaaaaa", "foreign/none", "nowhere/none", "none", "sb-", ""} {
			answers = append(answers, strings.Replace(e.answer(user, key), fmt.Sprintf("%q", user), "NAME", 1))
		}
		for _, a := range answers {
			if a != answers[0] || !strings.Contains(a, "no sandbox NAME that this key may use") {
				t.Errorf("as %s: %q", role, answers)
				break
			}
		}
	}
}

// TestSSHConnectionsEndWithTheirKey: deleting a key ends the connections, and so
// does revoking the certificate, or deleting the API key, with which an SSH
// certificate was asked for.
func TestSSHConnectionsEndWithTheirKey(t *testing.T) {
	e := newSSHEnv(t)
	x := e.newTenant("shop")
	key := newSigner(t)
	e.add(key, "alice", time.Hour, "deployer@shop")
	tls := e.issue(e.root(), "bob", "deployer@shop")
	bob := e.certificate(e.holder(tls), x)
	made, err := core.NewKeysClient(e.root()).Create(t.Context(), &core.CreateKeyRequest{Project: "shop", Name: "ci", Roles: []string{"agent"}})
	if err != nil {
		t.Fatal(err)
	}
	ci, err := e.f.keys.Authenticate(t.Context(), made.Secret)
	if err != nil {
		t.Fatal(err)
	}
	program := e.f.rpc.Local(ci)
	t.Cleanup(program.Close)
	agent := e.certificate(program, x)
	for name, c := range map[string]struct {
		key gossh.Signer
		end func() error
	}{
		"key": {key, func() error {
			_, err := server.NewSSHClient(e.root()).DeleteKey(t.Context(), &server.DeleteSSHKeyRequest{Key: gossh.FingerprintSHA256(key.PublicKey())})
			return err
		}},
		"certificate": {bob, func() error {
			_, err := server.NewServerClient(e.root()).RevokeIdentity(t.Context(), &server.RevokeIdentityRequest{Certificate: tls.Serial})
			return err
		}},
		"API key": {agent, func() error {
			return core.NewKeysClient(e.root()).Delete(t.Context(), &core.KeyRequest{Project: "shop", Name: "ci"})
		}},
	} {
		e.answer(string(x.sandbox.ID), c.key) // the call that lasts as long as the connection has begun
		conn, err := e.login(string(x.sandbox.ID), c.key)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.end(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan struct{})
		go func() { _ = conn.Wait(); close(ended) }()
		wait.Receive(t, name+": the connection ends", ended, wait.Within(20*time.Second))
	}
	for name, key := range map[string]gossh.Signer{"deleted key": key, "revoked certificate": bob, "deleted API key": agent} {
		if _, err := e.login(string(x.sandbox.ID), key); err == nil {
			t.Errorf("a %s logs in", name)
		}
	}
}

// TestSSHCertificatesAreForOneSandbox: they have the identity of the caller, and
// are of this installation.
func TestSSHCertificatesAreForOneSandbox(t *testing.T) {
	e := newSSHEnv(t)
	x, other := e.newTenant("shop"), e.newTenant("shop")
	key := e.certificate(e.holder(e.issue(e.root(), "bob", "deployer@shop")), x)
	e.answer(string(x.sandbox.ID), key)
	if _, err := e.login(string(other.sandbox.ID), key); err == nil {
		t.Error("it logs in to another sandbox")
	}
	viewer := server.NewSSHClient(e.holder(e.issue(e.root(), "eve", "viewer")))
	if _, err := viewer.IssueCertificate(t.Context(), &server.IssueSSHCertificateRequest{Sandbox: x.sandbox.GetID(), PublicKey: publicLine(newSigner(t))}); !errs.Is(err, errs.PermissionDenied) {
		t.Errorf("a viewer gets a certificate: %v", err)
	}
	for name, life := range map[string]time.Duration{"other": time.Hour, "expired": -time.Minute} {
		authority := e.f.sshPrivate
		if name == "other" {
			var err error
			if authority, err = sshserver.OpenAuthority(t.TempDir()); err != nil {
				t.Fatal(err)
			}
		}
		raw := newSigner(t)
		cert, _, err := authority.Issue(raw.PublicKey(), string(x.sandbox.ID), rpc.Identity{Name: "root", Roles: []string{rpc.RoleAdmin}, How: "socket"}, life)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := e.login(string(x.sandbox.ID), e.certified(raw, cert)); err == nil {
			t.Errorf("a certificate logs in: %s", name)
		}
	}
	wait.For(t, "the connection is recorded", func() bool {
		for _, r := range e.records(entity.HistoryQuery{}) {
			if r.Action == "server.SSH/Connect" && r.Actor == "bob" && r.SubjectID == string(x.sandbox.ID) && r.Project == "shop" {
				return true
			}
		}
		return false
	})
}

// TestSSHRefusesWeakAlgorithms: a client that offers nothing better gets no
// connection.
func TestSSHRefusesWeakAlgorithms(t *testing.T) {
	e := newSSHEnv(t)
	weak := gossh.InsecureAlgorithms()
	for name, c := range map[string]gossh.Config{
		"key exchange": {KeyExchanges: weak.KeyExchanges}, "cipher": {Ciphers: weak.Ciphers}, "MAC": {Ciphers: []string{gossh.CipherAES128CTR}, MACs: weak.MACs},
	} {
		_, err := gossh.Dial("tcp", e.address, &gossh.ClientConfig{Config: c, User: "x", HostKeyCallback: gossh.InsecureIgnoreHostKey(), Timeout: time.Minute})
		if err == nil || !strings.Contains(err.Error(), "no common algorithm") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestSSHSilentClientsKeepNobodyOut: more connections than may be in their
// handshake close the oldest.
func TestSSHSilentClientsKeepNobodyOut(t *testing.T) {
	e := newSSHEnv(t)
	key := newSigner(t)
	e.add(key, "alice", time.Hour, rpc.RoleAdmin)
	for range 200 {
		c, err := net.Dial("tcp", e.address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
	}
	if _, err := e.login("any", key); err != nil {
		t.Error(err)
	}
}

// TestSSHKeysStay: a server that starts again has the same key for certificates,
// which only its user can read.
func TestSSHKeysStay(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "ssh")
	if _, err := sshserver.OpenAuthority(dir); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "user_ca")
	first, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := sshserver.OpenAuthority(dir); err != nil {
		t.Fatal(err)
	}
	if second, err := os.ReadFile(file); err != nil || string(second) != string(first) {
		t.Error("the key is another one", err)
	}
	if st, err := os.Stat(file); err != nil || st.Mode() != 0o600 {
		t.Errorf("%v, %v", st, err)
	}
	if err := os.WriteFile(file, []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := sshserver.OpenAuthority(dir); !errs.Is(err, errs.FailedPrecondition) {
		t.Errorf("a damaged key: %v", err)
	}
}

// sshRequests are the ways in which a client can have something of a sandbox: each
// kind of channel, and each request in a session that begins something.
var sshRequests = map[string]func(c *gossh.Client) error{
	"exec": func(c *gossh.Client) error {
		return inSession(c, func(s *gossh.Session) error { return s.Run("true") })
	},
	"shell": func(c *gossh.Client) error {
		return inSession(c, func(s *gossh.Session) error { return begun(s, s.Shell()) })
	},
	"terminal": func(c *gossh.Client) error {
		return inSession(c, func(s *gossh.Session) error {
			if err := s.RequestPty("xterm", 24, 80, nil); err != nil {
				return err
			}
			return begun(s, s.Shell())
		})
	},
	"sftp": func(c *gossh.Client) error {
		return inSession(c, func(s *gossh.Session) error { return begun(s, s.RequestSubsystem("sftp")) })
	},
	"-L":             func(c *gossh.Client) error { return dialed(c.Dial("tcp", "localhost:80")) },
	"-L of a socket": func(c *gossh.Client) error { return dialed(c.Dial("unix", "/run/x.sock")) },
	"-R":             func(c *gossh.Client) error { return listens(c.Listen("tcp", "127.0.0.1:80")) },
	"-R of a socket": func(c *gossh.Client) error { return listens(c.ListenUnix("/run/x.sock")) },
	"agent": func(c *gossh.Client) error {
		return inSession(c, func(s *gossh.Session) error { return asked(s, "auth-agent-req@openssh.com") })
	},
	"X11": func(c *gossh.Client) error {
		return inSession(c, func(s *gossh.Session) error { return asked(s, "x11-req") })
	},
	"another system": func(c *gossh.Client) error {
		return inSession(c, func(s *gossh.Session) error { return s.RequestSubsystem("netconf") })
	},
	"a tunnel":        func(c *gossh.Client) error { _, _, err := c.OpenChannel("tun@openssh.com", nil); return err },
	"a channel of -R": func(c *gossh.Client) error { _, _, err := c.OpenChannel("forwarded-tcpip", nil); return err },
}

func inSession(c *gossh.Client, f func(*gossh.Session) error) error {
	s, err := c.NewSession()
	if err != nil {
		return err
	}
	defer s.Close()
	return f(s)
}

// begun waits for the end of what a session began.
func begun(s *gossh.Session, err error) error {
	if err != nil {
		return err
	}
	return s.Wait()
}

func dialed(c net.Conn, err error) error {
	if err == nil {
		_ = c.Close()
	}
	return err
}

func listens(l net.Listener, err error) error {
	if err == nil {
		_ = l.Close()
	}
	return err
}

func asked(s *gossh.Session, request string) error {
	ok, err := s.SendRequest(request, true, nil)
	if err == nil && !ok {
		err = fmt.Errorf("%s was refused", request)
	}
	return err
}

// TestEverySSHRequestNeedsItsProject: a key of another project, and one that may only
// read, get nothing by any kind of request, and neither gets a certificate. What
// the sandbox of another project is asked for is answered as for one that does not exist.
func TestEverySSHRequestNeedsItsProject(t *testing.T) {
	e := newSSHEnv(t)
	e.newTenant("own")
	foreign := e.newTenant("foreign")
	for _, role := range []string{"deployer@own", "agent@own", "admin@own", "viewer", "viewer@foreign"} {
		key := newSigner(t)
		e.add(key, "someone", time.Hour, role)
		for name, request := range sshRequests {
			var answers []string
			for _, user := range []string{string(foreign.sandbox.ID), "sb-aaaaaaaaaaaaaaaa"} {
				c, err := e.login(user, key)
				if err != nil {
					t.Fatal(err)
				}
				if err = request(c); err == nil {
					t.Errorf("as %s: %s succeeds with %s", role, name, user)
					continue
				}
				answers = append(answers, strings.ReplaceAll(err.Error(), user, "SANDBOX"))
				_ = c.Close()
			}
			if len(answers) == 2 && answers[0] != answers[1] {
				t.Errorf("as %s: %s is answered with %q", role, name, answers)
			}
		}
	}
	for _, role := range []string{"deployer@own", "admin@own", "viewer@foreign"} {
		cl := server.NewSSHClient(e.holder(e.issue(e.root(), "someone", role)))
		_, err := cl.IssueCertificate(t.Context(), &server.IssueSSHCertificateRequest{Sandbox: foreign.sandbox.GetID(), PublicKey: publicLine(newSigner(t))})
		if !errs.Is(err, errs.PermissionDenied) && !errs.Is(err, errs.NotFound) {
			t.Errorf("as %s: a certificate: %v", role, err)
		}
	}
	for name, request := range sshRequests {
		if c, err := e.login(string(foreign.sandbox.ID), newSigner(t)); err == nil {
			t.Errorf("without a key: %s: %v", name, request(c))
		}
	}
}
