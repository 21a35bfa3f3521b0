package proxy

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"os"
	"sync"
	"time"

	"miren.dev/runtime/pkg/atomicfile"
	"miren.dev/runtime/pkg/errs"
)

// authority signs the certificates that guests see where a secret is injected.
// There is one per installation, not per sandbox, so that a fork trusts it as
// well. Its key is in a file that only root reads.
type authority struct {
	path string // of its certificate and key, as PEM

	mu     sync.Mutex
	cert   *x509.Certificate // nil until first use
	key    crypto.Signer
	leaves map[string]*tls.Certificate // by name; all have one key
	shared *ecdsa.PrivateKey           // of the leaves
}

const (
	authorityValid = 10 * 365 * 24 * time.Hour
	leafValid      = 7 * 24 * time.Hour
	leafRenew      = 24 * time.Hour // before its end
	// clockSkew is how far the clock of a guest may be behind.
	clockSkew = time.Hour
	// maxLeaves bounds the certificates that are kept: a rule may be for all names
	// below a domain.
	maxLeaves = 1024
)

// certificate returns the authority's certificate, as PEM.
func (a *authority) certificate() ([]byte, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.load(time.Now()); err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw}), nil
}

// leaf returns a certificate for a name.
func (a *authority) leaf(name string, now time.Time) (*tls.Certificate, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.load(now); err != nil {
		return nil, err
	}
	if l := a.leaves[name]; l != nil && now.Before(l.Leaf.NotAfter.Add(-leafRenew)) {
		return l, nil
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{ // with a random serial number
		Subject: pkix.Name{CommonName: name[:min(len(name), 64)]}, DNSNames: []string{name},
		NotBefore: now.Add(-clockSkew), NotAfter: now.Add(leafValid),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, a.cert, a.shared.Public(), a.key)
	if err != nil {
		return nil, errs.New(errs.Internal, "certificate for %s: %w", printable(name), err)
	}
	l := &tls.Certificate{Certificate: [][]byte{der, a.cert.Raw}, PrivateKey: a.shared}
	if l.Leaf, err = x509.ParseCertificate(der); err != nil {
		return nil, errs.New(errs.Internal, "certificate for %s: %w", printable(name), err)
	}
	if len(a.leaves) >= maxLeaves {
		clear(a.leaves)
	}
	a.leaves[name] = l
	return l, nil
}

// load reads the authority, or makes it if it does not exist or is about to
// expire. Callers hold a.mu.
func (a *authority) load(now time.Time) error {
	if a.cert != nil && now.Add(leafValid).Before(a.cert.NotAfter) {
		return nil
	}
	b, err := os.ReadFile(a.path)
	if err == nil {
		a.cert, a.key, err = parseAuthority(b)
	}
	if errors.Is(err, os.ErrNotExist) || err == nil && now.Add(leafValid).After(a.cert.NotAfter) {
		if b, err = newAuthority(now); err == nil {
			err = atomicfile.Write(a.path, b, 0o600)
		}
		if err == nil {
			a.cert, a.key, err = parseAuthority(b)
		}
	}
	if err == nil {
		a.shared, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		a.leaves = map[string]*tls.Certificate{}
	}
	if err != nil {
		a.cert = nil
		return errs.New(errs.FailedPrecondition, "certificate authority of the egress proxy in %s: %w", a.path, err).
			WithHint("remove the file if it is damaged: another one is made, which only new sandboxes trust")
	}
	return nil
}

// newAuthority returns the file of a new authority.
func newAuthority(now time.Time) ([]byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		Subject:   pkix.Name{Organization: []string{"Miren Runtime"}, CommonName: "Egress proxy of this machine " + rand.Text()[:8]},
		NotBefore: now.Add(-clockSkew), NotAfter: now.Add(authorityValid),
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign, IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	for _, block := range []*pem.Block{{Type: "CERTIFICATE", Bytes: der}, {Type: "PRIVATE KEY", Bytes: private}} {
		if err := pem.Encode(&b, block); err != nil {
			return nil, err
		}
	}
	return b.Bytes(), nil
}

func parseAuthority(b []byte) (*x509.Certificate, crypto.Signer, error) {
	pair, err := tls.X509KeyPair(b, b)
	if err != nil {
		return nil, nil, err
	}
	return pair.Leaf, pair.PrivateKey.(crypto.Signer), nil
}
