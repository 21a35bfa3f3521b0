package identity

import (
	"crypto/tls"
	"crypto/x509"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/rpc"
)

func openAt(t *testing.T, dir string, now func() time.Time) *Authority {
	t.Helper()
	a, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if now != nil {
		a.now = now
	}
	return a
}

func TestAuthorityIsKept(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pki")
	cas := make([]string, 8)
	var wg sync.WaitGroup
	for i := range cas {
		wg.Go(func() {
			if a, err := Open(dir); err != nil {
				t.Error(err)
			} else {
				cas[i] = string(a.CA())
			}
		})
	}
	wg.Wait()
	if len(slices.Compact(cas)) != 1 {
		t.Error("concurrent first starts made different authorities")
	}
	if _, err := openAt(t, dir, nil).ServerTLS("example.test"); err != nil {
		t.Fatal(err)
	}
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err == nil && info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %s", p, info.Mode())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestDamagedAuthority(t *testing.T) {
	dir := t.TempDir()
	openAt(t, dir, nil)
	if err := os.WriteFile(filepath.Join(dir, "ca.key"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir); !errs.Is(err, errs.Corrupt) {
		t.Errorf("got %v", err)
	}
	// The key is lost: it must not be replaced, all clients depend on it.
	if err := os.Remove(filepath.Join(dir, "ca.key")); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir); err == nil {
		t.Error("a lost key was replaced")
	}
}

func serverCert(t *testing.T, cfg *tls.Config) *x509.Certificate {
	t.Helper()
	c, err := cfg.GetCertificate(nil)
	if err != nil {
		t.Fatal(err)
	}
	return c.Leaf
}

func TestServerCertificateIsRenewed(t *testing.T) {
	dir := t.TempDir()
	now := time.Now()
	a := openAt(t, dir, func() time.Time { return now })
	cfg, err := a.ServerTLS("runtime.example", "10.1.2.3")
	if err != nil {
		t.Fatal(err)
	}
	first := serverCert(t, cfg)
	for _, name := range []string{"runtime.example", "10.1.2.3", "127.0.0.1", "localhost"} {
		if err := first.VerifyHostname(name); err != nil {
			t.Error(err)
		}
	}
	// Another start reads the same authority.
	again, err := openAt(t, dir, nil).ServerTLS("10.1.2.3", "runtime.example")
	if err != nil {
		t.Fatal(err)
	}
	if !serverCert(t, again).Equal(first) {
		t.Error("a restart made another certificate")
	}
	// Other names, another certificate.
	other, err := openAt(t, dir, nil).ServerTLS("other.example")
	if err != nil {
		t.Fatal(err)
	}
	if c := serverCert(t, other); c.VerifyHostname("other.example") != nil || c.VerifyHostname("runtime.example") == nil {
		t.Errorf("names are %v", c.DNSNames)
	}
	// While the first server runs on, its certificate comes to its end.
	now = now.Add(serverLife - renewBefore + time.Hour)
	renewed := serverCert(t, cfg)
	if renewed.Equal(first) || renewed.NotAfter.Before(now.Add(renewBefore)) {
		t.Errorf("still valid until %s on %s", renewed.NotAfter, now)
	}
}

// TestIssuedCertificatesConnect: issued certificates work with RPC, and invalid ones do not.
func TestIssuedCertificatesConnect(t *testing.T) {
	a := openAt(t, t.TempDir(), nil)
	cfg, err := a.ServerTLS()
	if err != nil {
		t.Fatal(err)
	}
	srv, err := rpc.NewServer(rpc.ServerOptions{TLS: cfg})
	if err != nil {
		t.Fatal(err)
	}
	defer srv.Close()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- srv.Serve(l) }()
	dial := func(a *Authority, p *Pair) error {
		t.Helper()
		client, err := ClientTLS(a.CA(), p.Certificate, p.Key, "")
		if err != nil {
			t.Fatal(err)
		}
		cl, err := rpc.Dial(t.Context(), l.Addr().String(), rpc.ClientOptions{TLS: client})
		if err == nil {
			cl.Close()
		}
		return err
	}
	good, err := a.IssueClient("alice", []string{"deployer", "viewer"}, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if err := dial(a, good); err != nil {
		t.Errorf("a good certificate: %v", err)
	}
	if err := dial(a, &Pair{}); err != nil {
		t.Errorf("anonymous: %v", err)
	}
	stranger := openAt(t, t.TempDir(), nil)
	foreign, err := stranger.IssueClient("mallory", []string{"admin"}, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := dial(a, foreign); !errs.Is(err, errs.Unauthenticated) {
		t.Errorf("a certificate of another authority: %v", err)
	}
	if err := dial(stranger, foreign); !errs.Is(err, errs.Unauthenticated) {
		t.Errorf("a server of another authority: %v", err)
	}
	a.now = func() time.Time { return time.Now().Add(-2 * time.Hour) }
	old, err := a.IssueClient("bob", []string{"admin"}, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ClientTLS(a.CA(), old.Certificate, old.Key, ""); !errs.Is(err, errs.Unauthenticated) || errs.HintOf(err) == "" {
		t.Errorf("an expired certificate: %v", err)
	}
	pair, err := tls.X509KeyPair(old.Certificate, old.Key)
	if err != nil {
		t.Fatal(err)
	}
	client, err := ClientTLS(a.CA(), nil, nil, "")
	if err != nil {
		t.Fatal(err)
	}
	client.Certificates = []tls.Certificate{pair}
	if cl, err := rpc.Dial(t.Context(), l.Addr().String(), rpc.ClientOptions{TLS: client}); !errs.Is(err, errs.Unauthenticated) {
		t.Errorf("an expired certificate that is used all the same: %v", err)
		if err == nil {
			cl.Close()
		}
	}
	srv.Close()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestIssueRefuses(t *testing.T) {
	a := openAt(t, t.TempDir(), nil)
	for _, c := range []struct {
		name  string
		roles []string
		ttl   time.Duration
	}{{"", []string{"admin"}, 0}, {"x", nil, 0}, {"x", []string{""}, 0}, {"x", []string{"admin"}, -1}} {
		if _, err := a.IssueClient(c.name, c.roles, c.ttl); !errs.Is(err, errs.InvalidArgument) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	if _, err := ClientTLS([]byte("x"), nil, nil, ""); !errs.Is(err, errs.InvalidArgument) {
		t.Error(err)
	}
	if _, err := ClientTLS(a.CA(), []byte("x"), nil, ""); !errs.Is(err, errs.InvalidArgument) {
		t.Error(err)
	}
}
