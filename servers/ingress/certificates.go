package ingress

import (
	"cmp"
	"crypto/tls"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"miren.dev/runtime/domain/routes"
	"miren.dev/runtime/pkg/schema"
)

// Certificate is a certificate with its private key.
type Certificate struct {
	ID      schema.ID       `json:"id"`
	Project schema.ID       `json:"project,omitempty"`
	Created schema.Revision `json:"created,omitempty"` // of projects that have certificates for a name, the one with the oldest has it
	Chain   string          `json:"chain"`             // PEM, the certificate itself first
	Key     string          `json:"key"`               // PEM
}

const certificatesMagic = "runtime-ingress-certificates 1 "

// certificateSet maps names to certificates. It is immutable.
type certificateSet map[string]certificateOf // by name: exact or *.suffix

// certificateOf is a certificate with its project.
type certificateOf struct {
	*tls.Certificate
	project schema.ID
}

// newCertificateSet returns the certificates by name, and the ids of those that
// cannot be used. Of several certificates of a project for a name, the one that is
// valid for the longest time counts.
func newCertificateSet(list []Certificate) (set certificateSet, unusable []schema.ID) {
	set = certificateSet{}
	byAge := slices.Clone(list)
	slices.SortFunc(byAge, func(a, b Certificate) int {
		return cmp.Or(cmp.Compare(a.Created, b.Created), strings.Compare(string(a.ID), string(b.ID)))
	})
	var claims routes.Claims
	for _, c := range byAge {
		pair, err := tls.X509KeyPair([]byte(c.Chain), []byte(c.Key))
		if err != nil {
			unusable = append(unusable, c.ID)
			continue
		}
		for _, name := range pair.Leaf.DNSNames {
			name = strings.ToLower(name)
			if !claims.Add(name, c.Project) {
				continue
			}
			if old := set[name]; old.Certificate == nil || old.Leaf.NotAfter.Before(pair.Leaf.NotAfter) {
				set[name] = certificateOf{&pair, c.Project}
			}
		}
	}
	return set, unusable
}

// find returns the certificate for a normalised host, one of nil if there is none. A
// wildcard stands for one label.
func (s certificateSet) find(host string) certificateOf {
	c := s[host]
	if i := strings.IndexByte(host, '.'); c.Certificate == nil && i > 0 {
		c = s["*"+host[i:]]
	}
	return c
}

// keyring has the certificates, which come from Config.Certificates.
type keyring struct {
	asker[Certificate]
	in  *Ingress
	set atomic.Pointer[certificateSet]
}

func newKeyring(in *Ingress) *keyring {
	k := &keyring{in: in}
	k.set.Store(&certificateSet{})
	k.asker = asker[Certificate]{
		what: "certificates", ask: in.cfg.Certificates, use: k.use, file: in.cfg.CertificateFile, magic: certificatesMagic, logger: in.cfg.Logger,
		wake: make(chan struct{}, 1),
	}
	return k
}

// find returns the certificate for a host, nil if there is none.
func (k *keyring) find(host string) *tls.Certificate {
	return k.set.Load().find(normalHost(host)).Certificate
}

// tcpConfig is tlsConfig for a port of a project, which has no certificates of others.
func (k *keyring) tcpConfig(project schema.ID) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		GetCertificate: func(h *tls.ClientHelloInfo) (*tls.Certificate, error) {
			if c := k.set.Load().find(normalHost(h.ServerName)); c.project == project {
				return c.Certificate, nil
			}
			return nil, nil
		},
	}
}

func (k *keyring) use(list []Certificate) {
	set, unusable := newCertificateSet(list)
	for _, id := range unusable {
		k.in.cfg.Logger.Error("a certificate cannot be used", "certificate", id)
	}
	k.set.Store(&set)
}

// tlsConfig selects the certificate by the name that the client sends. Without a
// certificate for it the handshake ends with the alert unrecognized_name.
func (k *keyring) tlsConfig() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		// http.Server sets HTTP/2 up once: without h2 here it would not, if it
		// served a plain listener first.
		NextProtos:         []string{"h2", "http/1.1"},
		GetConfigForClient: k.in.challengeConfig,
		GetCertificate:     func(h *tls.ClientHelloInfo) (*tls.Certificate, error) { return k.find(h.ServerName), nil },
	}
}

// checkSecure answers a request that came by the wrong connection, and reports
// whether it did: by HTTP for a host that has a certificate, or by HTTPS for a host
// that the certificate of the connection is not for.
func (x *exchange) checkSecure() bool {
	host := normalHost(x.r.Host)
	if x.r.TLS != nil {
		c := x.in.keys.find(x.r.TLS.ServerName)
		if c != nil && c.Leaf.VerifyHostname(host) == nil {
			return false
		}
		x.fail(&page{Status: http.StatusMisdirectedRequest, Code: "misdirected", Title: "Wrong connection",
			Detail: "The certificate of this connection is not for the host of the request."})
		return true
	}
	uri := x.r.URL.RequestURI()
	if x.in.httpsPort == 0 || x.in.cfg.NoRedirect || !strings.HasPrefix(uri, "/") || strings.HasPrefix(uri, acmePath) || x.in.keys.find(host) == nil {
		return false
	}
	if x.trusted && strings.EqualFold(x.r.Header.Get("X-Forwarded-Proto"), "https") {
		return false // the proxy has TLS
	}
	if x.in.httpsPort != 443 {
		host = net.JoinHostPort(host, strconv.Itoa(x.in.httpsPort))
	}
	h := x.w.Header()
	h.Set("Location", "https://"+host+uri)
	h.Set("Content-Length", "0")
	h.Set("X-Request-Id", x.out.requestID)
	x.started, x.status, x.first = true, http.StatusPermanentRedirect, time.Now()
	x.w.WriteHeader(x.status)
	return true
}
