// Package identity makes and keeps the certificates of an installation: its
// certificate authority, the certificate of its server, and client
// certificates, whose common name is the identity and whose organisations are
// the roles.
//
// Files, all with mode 0600 in a directory of mode 0700:
//
//	<dir>/ca.pem, ca.key            of the authority; made at first start, kept for ever
//	<dir>/server.pem, server.key    of the server; made again when it is due to expire
//	                                or when its names change
//
// Keys are ECDSA P-256. Only TLS 1.3 is spoken.
package identity

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/pkg/atomicfile"
	"miren.dev/runtime/pkg/errs"
)

const (
	caLife     = 20 * 365 * 24 * time.Hour
	serverLife = 365 * 24 * time.Hour
	// renewBefore is how long before its expiry the server's certificate is
	// replaced.
	renewBefore = 60 * 24 * time.Hour
	// skew is the largest difference between the clocks of two machines.
	skew = 10 * time.Minute
	// checkEvery is the time between two checks of the server's certificate.
	checkEvery = time.Hour

	// DefaultClientLife is how long a client certificate is valid by default.
	DefaultClientLife = 365 * 24 * time.Hour
)

// Authority is the certificate authority of one installation. It is safe for
// concurrent use.
type Authority struct {
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	now  func() time.Time

	mu      sync.Mutex
	server  *tls.Certificate
	names   []string
	checked time.Time
}

// Open reads the authority in dir, or makes one at first start.
func Open(dir string) (*Authority, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, errs.New(errs.FailedPrecondition, "create %s: %w", dir, err)
	}
	unlock, err := lock(dir)
	if err != nil {
		return nil, err
	}
	defer unlock()
	a := &Authority{dir: dir, now: time.Now}
	pair, err := a.load("ca")
	if errors.Is(err, fs.ErrNotExist) {
		pair, err = a.create()
	}
	if err != nil {
		return nil, err
	}
	key, ok := pair.PrivateKey.(*ecdsa.PrivateKey)
	if !ok || !pair.Leaf.IsCA {
		return nil, errs.New(errs.Corrupt, "%s is not an authority of runtime", filepath.Join(dir, "ca.pem"))
	}
	a.cert, a.key = pair.Leaf, key
	return a, nil
}

// lock makes sure that two first starts do not make two authorities.
func lock(dir string) (func(), error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, errs.New(errs.FailedPrecondition, "open %s: %w", dir, err)
	}
	if err := unix.Flock(int(d.Fd()), unix.LOCK_EX); err != nil {
		_ = d.Close()
		return nil, errs.New(errs.Unavailable, "lock %s: %w", dir, err)
	}
	return func() { _ = d.Close() }, nil
}

func (a *Authority) create() (*tls.Certificate, error) {
	key, err := newKey()
	if err != nil {
		return nil, err
	}
	now := a.now()
	tmpl := &x509.Certificate{
		Subject:   pkix.Name{CommonName: "runtime " + now.UTC().Format("2006-01-02")},
		NotBefore: now.Add(-skew), NotAfter: now.Add(caLife), IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	cert, err := sign(tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	return a.save("ca", cert, key)
}

// CA returns the authority's certificate in PEM.
func (a *Authority) CA() []byte { return encodeCert(a.cert.Raw) }

// Pair is a certificate and its key in PEM.
type Pair struct {
	Certificate, Key []byte
	Serial           string // as in rpc.Identity
	ExpiresAt        time.Time
}

// IssueClient makes a certificate with a name and roles. ttl 0 means
// DefaultClientLife. The authority does not keep the key.
func (a *Authority) IssueClient(name string, roles []string, ttl time.Duration) (*Pair, error) {
	key, err := newKey()
	if err != nil {
		return nil, err
	}
	pair, err := a.signClient(&key.PublicKey, name, roles, ttl)
	if err != nil {
		return nil, err
	}
	pair.Key, err = encodeKey(key)
	return pair, err
}

// SignClient makes a certificate for the key of a certificate request in PEM.
// Nothing else of the request counts. The Pair has no key.
func (a *Authority) SignClient(request []byte, name string, roles []string, ttl time.Duration) (*Pair, error) {
	pub, err := requestKey(request)
	if err != nil {
		return nil, err
	}
	return a.signClient(pub, name, roles, ttl)
}

// requestKey returns the key of a certificate request.
func requestKey(request []byte) (*ecdsa.PublicKey, error) {
	block, _ := pem.Decode(request)
	if block == nil || block.Type != "CERTIFICATE REQUEST" {
		return nil, errs.New(errs.InvalidArgument, "this is no certificate request in PEM")
	}
	csr, err := x509.ParseCertificateRequest(block.Bytes)
	if err == nil {
		err = csr.CheckSignature()
	}
	if err != nil {
		return nil, errs.New(errs.InvalidArgument, "certificate request: %w", err)
	}
	pub, ok := csr.PublicKey.(*ecdsa.PublicKey)
	if !ok || pub.Curve != elliptic.P256() {
		return nil, errs.New(errs.InvalidArgument, "the key of a certificate request must be of ECDSA P-256")
	}
	return pub, nil
}

// RequestKey returns the SHA-256 of the key of a certificate request, in
// hexadecimal digits.
func RequestKey(request []byte) (string, error) {
	pub, err := requestKey(request)
	if err != nil {
		return "", err
	}
	der, err := x509.MarshalPKIXPublicKey(pub)
	if err != nil {
		return "", errs.New(errs.InvalidArgument, "certificate request: %w", err)
	}
	sum := sha256.Sum256(der)
	return hex.EncodeToString(sum[:]), nil
}

func (a *Authority) signClient(pub *ecdsa.PublicKey, name string, roles []string, ttl time.Duration) (*Pair, error) {
	switch {
	case name == "" || len(name) > 64:
		return nil, errs.New(errs.InvalidArgument, "the name of an identity has 1 to 64 bytes")
	case len(roles) == 0 || slices.Contains(roles, ""):
		return nil, errs.New(errs.InvalidArgument, "an identity needs at least one role")
	case ttl < 0:
		return nil, errs.New(errs.InvalidArgument, "an identity cannot have expired when it is made")
	}
	if ttl == 0 {
		ttl = DefaultClientLife
	}
	now := a.now()
	end := now.Add(ttl)
	if end.After(a.cert.NotAfter) {
		end = a.cert.NotAfter
	}
	cert, err := sign(&x509.Certificate{
		Subject: pkix.Name{CommonName: name, Organization: roles}, NotBefore: now.Add(-skew), NotAfter: end,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, a.cert, pub, a.key)
	if err != nil {
		return nil, err
	}
	return &Pair{Certificate: encodeCert(cert.Raw), Serial: cert.SerialNumber.Text(16), ExpiresAt: cert.NotAfter}, nil
}

// NewRequest makes a key and a certificate request for it, both in PEM.
func NewRequest() (key, request []byte, err error) {
	k, err := newKey()
	if err != nil {
		return nil, nil, err
	}
	if key, err = encodeKey(k); err != nil {
		return nil, nil, err
	}
	request, err = RequestFor(key)
	return key, request, err
}

// RequestFor makes a certificate request for a key in PEM.
func RequestFor(key []byte) ([]byte, error) {
	block, _ := pem.Decode(key)
	if block == nil {
		return nil, errs.New(errs.Corrupt, "the key is not in PEM")
	}
	k, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, errs.New(errs.Corrupt, "parse the key: %w", err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, k)
	if err != nil {
		return nil, errs.New(errs.Internal, "make a certificate request: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), nil
}

// Fingerprint returns the SHA-256 of the certificate of an authority in PEM, in
// hexadecimal digits.
func Fingerprint(ca []byte) (string, error) {
	block, _ := pem.Decode(ca)
	if block == nil || block.Type != "CERTIFICATE" {
		return "", errs.New(errs.InvalidArgument, "the certificate authority is not a certificate in PEM")
	}
	sum := sha256.Sum256(block.Bytes)
	return hex.EncodeToString(sum[:]), nil
}

// ServerTLS returns the configuration of a server that is reached under names
// (host names and addresses; those of the loopback are added). Its certificate
// is renewed while it runs. Clients without a certificate are anonymous.
func (a *Authority) ServerTLS(names ...string) (*tls.Config, error) {
	all := append([]string{"localhost", "127.0.0.1", "::1"}, names...)
	slices.Sort(all)
	a.mu.Lock()
	a.names, a.server = slices.Compact(all), nil
	a.mu.Unlock()
	if _, err := a.serverCertificate(); err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return &tls.Config{
		MinVersion: tls.VersionTLS13, ClientAuth: tls.VerifyClientCertIfGiven, ClientCAs: pool,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return a.serverCertificate() },
	}, nil
}

// serverCertificate returns a certificate that does not expire soon.
func (a *Authority) serverCertificate() (*tls.Certificate, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.now()
	if a.server != nil && now.Sub(a.checked) < checkEvery {
		return a.server, nil
	}
	if a.server == nil {
		pair, err := a.load("server")
		switch {
		case err == nil:
			a.server = pair
		case !errors.Is(err, fs.ErrNotExist) && !errs.Is(err, errs.Corrupt): // a new certificate cures both
			return nil, err
		}
	}
	if a.server == nil || !a.fits(a.server.Leaf, now) {
		pair, err := a.issueServer(now)
		if err != nil {
			if a.server != nil && a.server.Leaf.NotAfter.After(now) && a.covers(a.server.Leaf) {
				return a.server, nil // the old one is still valid; the next check tries again
			}
			return nil, err
		}
		a.server = pair
	}
	a.checked = now
	return a.server, nil
}

// fits reports whether a server certificate is valid long enough and for the
// names.
func (a *Authority) fits(c *x509.Certificate, now time.Time) bool {
	return now.Add(renewBefore).Before(c.NotAfter) && a.covers(c)
}

func (a *Authority) covers(c *x509.Certificate) bool {
	if c.CheckSignatureFrom(a.cert) != nil {
		return false
	}
	return slices.Equal(a.names, namesOf(c))
}

func namesOf(c *x509.Certificate) []string {
	names := slices.Clone(c.DNSNames)
	for _, ip := range c.IPAddresses {
		names = append(names, ip.String())
	}
	slices.Sort(names)
	return names
}

func (a *Authority) issueServer(now time.Time) (*tls.Certificate, error) {
	key, err := newKey()
	if err != nil {
		return nil, err
	}
	tmpl := &x509.Certificate{
		Subject: pkix.Name{CommonName: "runtime server"}, NotBefore: now.Add(-skew), NotAfter: now.Add(serverLife),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, n := range a.names {
		if ip := net.ParseIP(n); ip != nil {
			tmpl.IPAddresses = append(tmpl.IPAddresses, ip)
		} else {
			tmpl.DNSNames = append(tmpl.DNSNames, n)
		}
	}
	cert, err := sign(tmpl, a.cert, &key.PublicKey, a.key)
	if err != nil {
		return nil, err
	}
	return a.save("server", cert, key)
}

// load reads name.pem and name.key.
func (a *Authority) load(name string) (*tls.Certificate, error) {
	certFile, keyFile := filepath.Join(a.dir, name+".pem"), filepath.Join(a.dir, name+".key")
	certPEM, err := os.ReadFile(certFile)
	if err != nil {
		return nil, fileError(err)
	}
	keyPEM, err := os.ReadFile(keyFile)
	if errors.Is(err, fs.ErrNotExist) { // the key is written before the certificate, so it was lost
		return nil, damaged(certFile, keyFile, err)
	}
	if err != nil {
		return nil, fileError(err)
	}
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return nil, damaged(certFile, keyFile, err)
	}
	return &pair, nil
}

func damaged(certFile, keyFile string, err error) error {
	// The cause is not wrapped: it may be that a file does not exist, and then
	// the caller would take this for a first start.
	return errs.New(errs.Corrupt, "%s and %s: %v", certFile, keyFile, err).
		WithHint("restore both from a backup; without them clients must get new certificates")
}

func fileError(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return errs.New(errs.Unavailable, "read certificate: %w", err)
}

// save writes name.key, then name.pem: a reader that finds the certificate finds the key.
func (a *Authority) save(name string, cert *x509.Certificate, key *ecdsa.PrivateKey) (*tls.Certificate, error) {
	keyPEM, err := encodeKey(key)
	if err != nil {
		return nil, err
	}
	for _, f := range []struct {
		file string
		data []byte
	}{{name + ".key", keyPEM}, {name + ".pem", encodeCert(cert.Raw)}} {
		if err := atomicfile.Write(filepath.Join(a.dir, f.file), f.data, 0o600); err != nil {
			return nil, errs.New(errs.Unavailable, "write %s: %w", f.file, err)
		}
	}
	return &tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: key, Leaf: cert}, nil
}

func newKey() (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, errs.New(errs.Internal, "make a key: %w", err)
	}
	return key, nil
}

func sign(tmpl, parent *x509.Certificate, pub *ecdsa.PublicKey, key *ecdsa.PrivateKey) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, errs.New(errs.Internal, "make a serial number: %w", err)
	}
	tmpl.SerialNumber = serial.Add(serial, big.NewInt(1))
	der, err := x509.CreateCertificate(rand.Reader, tmpl, parent, pub, key)
	if err != nil {
		return nil, errs.New(errs.InvalidArgument, "make a certificate: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, errs.New(errs.Internal, "make a certificate: %w", err)
	}
	return cert, nil
}

func encodeCert(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func encodeKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, errs.New(errs.Internal, "encode a key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

// ClientTLS returns the configuration of a client: the authority that signed
// the server's certificate, and the client's certificate and key unless both
// are empty, all in PEM. serverName is expected in the server's certificate;
// empty means the host that is dialled.
func ClientTLS(ca, certificate, key []byte, serverName string) (*tls.Config, error) {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(ca) {
		return nil, errs.New(errs.InvalidArgument, "the certificate authority is not a certificate in PEM")
	}
	cfg := &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: pool, ServerName: serverName}
	if len(certificate) > 0 || len(key) > 0 {
		pair, err := tls.X509KeyPair(certificate, key)
		if err != nil {
			return nil, errs.New(errs.InvalidArgument, "client certificate: %w", err)
		}
		if end := pair.Leaf.NotAfter; time.Now().After(end) {
			return nil, errs.New(errs.Unauthenticated, "the certificate of %s expired on %s", pair.Leaf.Subject.CommonName, end.Format(time.DateOnly)).
				WithHint("generate a new one with `r auth generate`")
		}
		cfg.Certificates = []tls.Certificate{pair}
	}
	return cfg, nil
}
