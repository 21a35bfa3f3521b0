package hostcheck

import (
	"crypto/ed25519"
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

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"miren.dev/runtime/cli/doctor"
	"miren.dev/runtime/pkg/config"
	"miren.dev/runtime/pkg/instance"
	"miren.dev/runtime/testsupport/private"
)

func host(t *testing.T) *doctor.Host {
	t.Helper()
	cfg := config.Default()
	cfg.StateDir, cfg.RunDir = t.TempDir(), t.TempDir()
	return &doctor.Host{Config: cfg}
}

func expect(t *testing.T, f doctor.Finding, level doctor.Level, text string) {
	t.Helper()
	if f.Level != level || !strings.Contains(f.Found, text) {
		t.Errorf("%+v, want %s with %q", f, level, text)
	}
}

func TestClockThatWentBackIsFound(t *testing.T) {
	h := host(t)
	file := filepath.Join(h.Config.StateDir, "server.yaml")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	expect(t, checkClock(t.Context(), h), doctor.OK, "")
	later := time.Now().Add(time.Hour)
	if err := os.Chtimes(file, later, later); err != nil {
		t.Fatal(err)
	}
	expect(t, checkClock(t.Context(), h), doctor.Fail, "before server.yaml was written")
}

func TestStoreThatIsAwayIsFound(t *testing.T) {
	h := host(t)
	expect(t, checkStore(t.Context(), h), doctor.OK, "private")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	defer l.Close()
	here, away := l.Addr().String(), closed.Addr().String()
	for url, want := range map[string]doctor.Level{
		"postgres://u:p@" + here + "/db": doctor.OK, "postgres://u:p@" + away + "/db": doctor.Fail,
		"etcd://" + here + "," + away + "/x": doctor.Warn, "etcd://" + away + "/x": doctor.Fail,
		"sqlite://" + h.Config.StateDir + "/x.db": doctor.OK, "sqlite:///no/such/directory/x.db": doctor.Fail,
		"postgres:///db?host=/run/postgresql": doctor.OK,
	} {
		h.Config.Store.URL = url
		f := checkStore(t.Context(), h)
		expect(t, f, want, "")
		if strings.Contains(f.Found, "u:p") {
			t.Errorf("it shows the password: %s", f.Found)
		}
	}
}

func TestInterruptedRestoreIsFound(t *testing.T) {
	h := host(t)
	expect(t, checkRestore(t.Context(), h), doctor.OK, "")
	if err := os.WriteFile(filepath.Join(h.Config.StateDir, "restoring"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	expect(t, checkRestore(t.Context(), h), doctor.Fail, "restore did not end")
}

func TestExpiredCertificateIsFound(t *testing.T) {
	h := host(t)
	pki := filepath.Join(h.Config.StateDir, "pki")
	if err := os.Mkdir(pki, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		end  time.Duration
		want doctor.Level
		text string
	}{{365 * 24 * time.Hour, doctor.OK, "1 valid"}, {24 * time.Hour, doctor.Warn, "expires on"}, {-time.Hour, doctor.Fail, "expired on"}} {
		public, key, err := ed25519.GenerateKey(rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "server"}, NotAfter: time.Now().Add(c.end)}
		der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, public, key)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(pki, "server.crt"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
		expect(t, checkCertificates(t.Context(), h), c.want, c.text)
	}
}

// TestLeftoversAreFound has, in a network and mounts of its own, what a killed
// installation leaves. TestBackup mends real ones.
func TestLeftoversAreFound(t *testing.T) {
	if !private.Run(t) {
		return
	}
	h := host(t)
	expect(t, checkLeftovers(t.Context(), h), doctor.OK, "no installation")
	in, err := instance.Open(h.Config.StateDir, h.Config.RunDir)
	if err != nil {
		t.Fatal(err)
	}
	expect(t, checkLeftovers(t.Context(), h), doctor.OK, "none")
	if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "rt" + in.ID + "br"}}); err != nil {
		t.Fatal(err)
	}
	expect(t, checkLeftovers(t.Context(), h), doctor.Fail, "the interface rt"+in.ID+"br")
	dir := in.Socket("netns")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(dir, unix.MNT_DETACH)
	expect(t, checkLeftovers(t.Context(), h), doctor.Fail, "the mount "+dir)
}
