package ingress

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"io"
	"math/big"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"miren.dev/runtime/api/certificate"
	"miren.dev/runtime/entity/informer"
	"miren.dev/runtime/pkg/schema"
)

const (
	// acmePath is the path at which authorities look for challenges, by HTTP.
	acmePath = "/.well-known/acme-challenge/"
	// acmeProtocol is what they ask for by TLS (RFC 8737).
	acmeProtocol = "acme-tls/1"
)

// acmeIdentifier is the extension of the certificate that answers a challenge.
var acmeIdentifier = asn1.ObjectIdentifier{1, 3, 6, 1, 5, 5, 7, 1, 31}

// challenges are those of authorities that this ingress answers. The server that
// orders the certificate waits until the ingress has a challenge.
type challenges struct {
	mu sync.RWMutex
	by map[schema.ID][]certificate.Challenge // by order
}

// changed takes over the challenges of an order.
func (s *challenges) changed(c informer.Change[*certificate.CertificateOrder]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.Old != nil {
		delete(s.by, c.Old.ID)
	}
	if c.New == nil || len(c.New.Status.Challenges) == 0 {
		return
	}
	if s.by == nil {
		s.by = map[schema.ID][]certificate.Challenge{}
	}
	s.by[c.New.ID] = c.New.Status.Challenges
}

// find returns the answer to a challenge; "" if there is none. An empty token stands
// for any.
func (s *challenges) find(kind, host, token string) string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, list := range s.by {
		for _, c := range list {
			if c.Type == kind && c.Host == host && (token == "" || c.Token == token) {
				return c.Answer
			}
		}
	}
	return ""
}

// answerChallenge answers an authority that asks by HTTP, and reports whether the
// request is for a challenge. Other requests below the path are those of the app.
func (x *exchange) answerChallenge() bool {
	token, ok := strings.CutPrefix(x.r.URL.Path, acmePath)
	if !ok || token == "" || x.r.Method != http.MethodGet && x.r.Method != http.MethodHead {
		return false
	}
	answer := x.in.challenges.find("http-01", normalHost(x.r.Host), token)
	if answer == "" {
		return false
	}
	h := x.w.Header()
	h.Set("Content-Type", "application/octet-stream")
	h.Set("Content-Length", strconv.Itoa(len(answer)))
	h.Set("X-Request-Id", x.out.requestID)
	x.started, x.status, x.first = true, http.StatusOK, time.Now()
	x.w.WriteHeader(x.status)
	if x.r.Method == http.MethodGet {
		_, _ = io.WriteString(x.w, answer) // the authority has gone
	}
	return true
}

// challengeConfig returns the configuration of the handshake of an authority that
// asks by TLS, nil for any other handshake.
func (in *Ingress) challengeConfig(h *tls.ClientHelloInfo) (*tls.Config, error) {
	if !slices.Equal(h.SupportedProtos, []string{acmeProtocol}) {
		return nil, nil
	}
	host := normalHost(h.ServerName)
	answer := in.challenges.find("tls-alpn-01", host, "")
	if answer == "" {
		return nil, nil
	}
	c, err := challengeCertificate(host, answer)
	if err != nil {
		return nil, err
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{acmeProtocol}, Certificates: []tls.Certificate{*c}}, nil
}

// challengeCertificate returns the certificate that answers a challenge. No client
// trusts it.
func challengeCertificate(host, answer string) (*tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256([]byte(answer))
	value, err := asn1.Marshal(sum[:])
	if err != nil {
		return nil, err
	}
	now := time.Now()
	t := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ACME challenge"}, DNSNames: []string{host},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(24 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		ExtraExtensions: []pkix.Extension{{Id: acmeIdentifier, Critical: true, Value: value}},
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}
