package nbd_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/lsvd"
	"miren.dev/runtime/lsvd/frontend/nbd"
	"miren.dev/runtime/lsvd/store/storesim"
	"miren.dev/runtime/lsvd/vfs/vfssim"
	"miren.dev/runtime/pkg/errs"
)

// authority is a CA that writes directories of certificates.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	a := &authority{t: t}
	a.cert, a.key = a.sign(&x509.Certificate{Subject: pkix.Name{CommonName: "test CA"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign})
	return a
}

// sign signs a certificate, itself if there is no CA yet.
func (a *authority) sign(c *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	c.SerialNumber, c.NotBefore, c.NotAfter = big.NewInt(time.Now().UnixNano()), time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, by := c, key
	if a.cert != nil {
		parent, by = a.cert, a.key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, by)
	if err != nil {
		a.t.Fatal(err)
	}
	if c, err = x509.ParseCertificate(der); err != nil {
		a.t.Fatal(err)
	}
	return c, key
}

// dir makes a directory with the CA and, if it is named, a certificate for
// "server" or "client".
func (a *authority) dir(name string) string {
	a.t.Helper()
	dir := a.t.TempDir()
	write := func(file, kind string, der []byte) {
		if err := os.WriteFile(filepath.Join(dir, file), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			a.t.Fatal(err)
		}
	}
	write("ca-cert.pem", "CERTIFICATE", a.cert.Raw)
	if name == "" {
		return dir
	}
	c, key := a.sign(&x509.Certificate{Subject: pkix.Name{CommonName: name}, DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}})
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	write(name+"-cert.pem", "CERTIFICATE", c.Raw)
	write(name+"-key.pem", "PRIVATE KEY", der)
	return dir
}

func listenTCP(t *testing.T) (l net.Listener, hostPort string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l, strings.Replace(l.Addr().String(), "127.0.0.1", "localhost", 1)
}

func memoryDisk(t *testing.T, size int64) *lsvd.Device {
	t.Helper()
	st, id := &storesim.Mem{}, lsvd.NewID()
	if err := lsvd.Create(t.Context(), st, id, size, nil); err != nil {
		t.Fatal(err)
	}
	d, _, err := lsvd.Open(t.Context(), st, vfssim.New(), id, lsvd.Options{LogFile: 4 << 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return d
}

// TestTLS has clients with GnuTLS copy an image over TCP, and turns away those
// that have no TLS, no certificate or one of another CA.
func TestTLS(t *testing.T) {
	needClients(t, "nbdinfo", "nbdcopy", "cmp")
	ca := newAuthority(t)
	server, client, stranger := ca.dir("server"), ca.dir("client"), newAuthority(t).dir("client")
	d := memoryDisk(t, 32<<20)
	image, back := writeImage(t, d.Size()), filepath.Join(t.TempDir(), "back")
	for _, clients := range []bool{false, true} {
		cfg, err := nbd.LoadTLS(server, clients)
		if err != nil {
			t.Fatal(err)
		}
		l, host := listenTCP(t)
		serveOn(t, d, func(ctx context.Context, s *nbd.Server) error { return s.ServeTLS(ctx, l, cfg) })
		with := func(dir string) string { return "nbds://" + host + "/disk?tls-certificates=" + dir }
		runClient(t, "nbdcopy", "--flush", image, with(client))
		runClient(t, "nbdcopy", with(client), back)
		runClient(t, "cmp", image, back)
		if out := runClient(t, "nbdinfo", with(client)); !strings.Contains(out, "with TLS") {
			t.Errorf("nbdinfo: %s", out)
		}
		for _, x := range []struct{ name, uri string }{{"without a certificate", with(ca.dir(""))}, {"of another CA", with(stranger)}} {
			// A client without certificates of its own is fine where none is asked for.
			wanted := !clients && x.name == "without a certificate"
			if out, err := tryClient(t, "nbdinfo", x.uri); (err == nil) != wanted {
				t.Errorf("client %s, required %v: %v\n%s", x.name, clients, err, out)
			}
		}
		for _, plain := range []string{"nbd://" + host + "/disk", "nbd://" + host} {
			if out, err := tryClient(t, "nbdinfo", plain); err == nil {
				t.Errorf("served without TLS: %s", out)
			}
		}
		if out, err := tryClient(t, "nbdinfo", "--list", "nbd://"+host); err == nil {
			t.Errorf("listed without TLS: %s", out)
		}
	}
}

// TestPlainTCP: without TLS only by name.
func TestPlainTCP(t *testing.T) {
	needClients(t, "nbdinfo")
	d := memoryDisk(t, 1<<20)
	l, _ := listenTCP(t)
	if err := nbd.New(discard).Serve(t.Context(), l); !errs.Is(err, errs.FailedPrecondition) {
		t.Errorf("plain TCP was served: %v", err)
	}
	l, host := listenTCP(t)
	serveOn(t, d, func(ctx context.Context, s *nbd.Server) error { return s.ServePlain(ctx, l) })
	runClient(t, "nbdinfo", "nbd://"+host+"/disk")
	if out, err := tryClient(t, "nbdinfo", "nbds://"+host+"/disk?tls-certificates="+newAuthority(t).dir("")); err == nil {
		t.Errorf("TLS where there is none: %s", out)
	}
}

func TestLoadTLS(t *testing.T) {
	if _, err := nbd.LoadTLS(t.TempDir(), false); !errs.Is(err, errs.FailedPrecondition) || errs.HintOf(err) == "" {
		t.Errorf("empty directory: %v", err)
	}
	dir := newAuthority(t).dir("server")
	if err := os.WriteFile(filepath.Join(dir, "ca-cert.pem"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := nbd.LoadTLS(dir, true); err == nil {
		t.Error("a CA that is none was taken")
	}
	if _, err := nbd.LoadTLS(dir, false); err != nil {
		t.Errorf("without clients' certificates: %v", err)
	}
}
