// Package certificates has the operations on the certificates of hosts.
//
//	Set, Delete            what users do
//	Served                 what the ingress serves with
//	Wanted, Issue, Renew   certificates that are ordered for routes
//
// A private key leaves the store by Served only.
package certificates

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"slices"
	"strings"
	"time"

	"miren.dev/runtime/api/certificate"
	"miren.dev/runtime/domain/projects"
	"miren.dev/runtime/domain/routes"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// Service is the operations on the certificates of one store. It is safe for
// concurrent use.
type Service struct {
	Store  entity.Store
	Sealer *schema.Sealer
	Routes *routes.Service // who has which host
}

// Find returns the named certificate of a project. NotFound if there is none.
func (s *Service) Find(ctx context.Context, project schema.ID, name string) (*certificate.Certificate, error) {
	c, err := entity.ByName[certificate.Certificate](ctx, s.Store, project, name)
	if errs.Is(err, errs.NotFound) {
		return nil, errs.New(errs.NotFound, "there is no certificate %q", name).WithHint("`r certificate set %s` makes it, `r certificate list` lists those that exist", name)
	}
	return c, err
}

// Set makes a certificate or replaces it. InvalidArgument, without the key, if
// chain and key are none that a server can use; AlreadyExists if a name belongs to
// another project.
func (s *Service) Set(ctx context.Context, project, name, chain, key string) (*certificate.Certificate, error) {
	spec, err := parse(chain, key, time.Now())
	if err != nil {
		return nil, err
	}
	pid, err := projects.Find(ctx, s.Store, project)
	if err != nil {
		return nil, err
	}
	if spec.Key, err = s.Sealer.Seal(key); err != nil {
		return nil, err
	}
	for _, n := range spec.Names {
		if err := s.Routes.MayClaim(ctx, pid, n); err != nil {
			return nil, err
		}
	}
	var c *certificate.Certificate
	err = entity.Retry(ctx, func() error {
		c, err = entity.ByName[certificate.Certificate](ctx, s.Store, pid, name)
		switch {
		case errs.Is(err, errs.NotFound):
			c = certificate.NewCertificate()
			c.Project, c.Name, c.Spec = pid, name, *spec
			err = entity.Create(ctx, s.Store, c)
			if errs.Is(err, errs.AlreadyExists) { // since ByName
				return errs.New(errs.Conflict, "%w", err)
			}
			return err
		case err != nil:
			return err
		}
		c.Spec = *spec
		return entity.AsConflict(entity.UpdateSpec(ctx, s.Store, c))
	})
	if err != nil {
		return nil, err
	}
	return c, s.settle(ctx, c)
}

// settle deletes a certificate if another project was given one of its names at
// the same time, and is the older one to have it.
func (s *Service) settle(ctx context.Context, c *certificate.Certificate) error {
	for _, n := range c.Spec.Names {
		err := s.Routes.HasOlder(ctx, c.Project, n, c.CreateRevision)
		if err == nil {
			continue
		}
		if errs.Is(err, errs.AlreadyExists) {
			if err := entity.Remove[certificate.Certificate](ctx, s.Store, c.GetID()); err != nil && !errs.Is(err, errs.NotFound) {
				return err
			}
		}
		return err
	}
	return nil
}

// Delete deletes a certificate. NotFound if there is none.
func (s *Service) Delete(ctx context.Context, project, name string) error {
	pid, err := projects.Find(ctx, s.Store, project)
	if err != nil {
		return err
	}
	c, err := s.Find(ctx, pid, name)
	if err != nil {
		return err
	}
	return entity.Remove[certificate.Certificate](ctx, s.Store, c.GetID())
}

// page is how many certificates Served returns at once: a chain and a key are at
// most 80 KiB.
const page = 50

// Served returns a page of the certificates after an id, with their keys, and
// whether there are more. Certificates whose key cannot be opened are left out.
func (s *Service) Served(ctx context.Context, after string) (list []certificate.ServedCertificate, more bool, err error) {
	all, _, err := entity.List[certificate.Certificate](ctx, s.Store, entity.Query{})
	if err != nil {
		return nil, false, err
	}
	slices.SortFunc(all, func(a, b *certificate.Certificate) int { return strings.Compare(string(a.ID), string(b.ID)) })
	list = []certificate.ServedCertificate{}
	for _, c := range all {
		if string(c.ID) <= after {
			continue
		}
		if len(list) == page {
			return list, true, nil
		}
		key, err := s.Sealer.Open(c.Spec.Key)
		if err != nil {
			continue
		}
		list = append(list, certificate.ServedCertificate{ID: string(c.ID), Project: string(c.Project), Created: int64(c.CreateRevision), Chain: c.Spec.Chain, Key: key})
	}
	return list, false, nil
}

// parse checks a certificate at a time.
func parse(chain, key string, now time.Time) (*certificate.CertificateSpec, error) {
	invalid := func(format string, args ...any) *errs.Error { return errs.New(errs.InvalidArgument, format, args...) }
	if len(chain) > certificate.MaxChain || len(key) > certificate.MaxKey {
		return nil, invalid("the chain or the key is longer than %d or %d bytes", certificate.MaxChain, certificate.MaxKey)
	}
	var certs []*x509.Certificate
	for rest := []byte(chain); ; {
		var b *pem.Block
		if b, rest = pem.Decode(rest); b == nil {
			if len(bytes.TrimSpace(rest)) > 0 && len(certs) > 0 {
				return nil, invalid("the chain ends with something that is not PEM")
			}
			break
		}
		if b.Type != "CERTIFICATE" {
			return nil, invalid("the chain has a block %q", b.Type).WithHint("the chain has certificates only; the key is a file of its own")
		}
		c, err := x509.ParseCertificate(b.Bytes)
		if err != nil {
			return nil, invalid("certificate %d of the chain: %v", len(certs)+1, err)
		}
		certs = append(certs, c)
	}
	if len(certs) == 0 {
		return nil, invalid("the chain has no certificate").WithHint("it is a text with lines -----BEGIN CERTIFICATE-----")
	}
	leaf := certs[0]
	for i, c := range certs[1:] {
		if err := certs[i].CheckSignatureFrom(c); err != nil {
			return nil, invalid("certificate %d of the chain is not signed by the next: %v", i+1, err).
				WithHint("the certificate of the host comes first, then that of each authority that signed the one before")
		}
	}
	if block, _ := pem.Decode([]byte(key)); block == nil {
		return nil, invalid("the key is not in PEM").WithHint("it is a text with a line -----BEGIN PRIVATE KEY-----; an encrypted one must be decrypted first")
	}
	if _, err := tls.X509KeyPair([]byte(chain), []byte(key)); err != nil {
		return nil, invalid("the key does not fit the certificate: %s", strings.TrimPrefix(err.Error(), "tls: "))
	}
	if !now.Before(leaf.NotAfter) {
		return nil, invalid("the certificate expired on %s", leaf.NotAfter.UTC().Format(time.DateTime))
	}
	if len(leaf.DNSNames) == 0 || len(leaf.DNSNames) > certificate.MaxNames {
		return nil, invalid("the certificate is for %d host names, not for 1 to %d", len(leaf.DNSNames), certificate.MaxNames).
			WithHint("names are taken from the field subjectAltName; the common name does not count")
	}
	var names []string
	for _, n := range leaf.DNSNames {
		host, err := routes.ParseHost(n)
		if err != nil || host == "*" {
			return nil, invalid("the certificate is for %q, which is not a host name", n)
		}
		names = append(names, host)
	}
	slices.Sort(names)
	sum := sha256.Sum256(leaf.Raw)
	return &certificate.CertificateSpec{
		Names: slices.Compact(names), Chain: chain, Issuer: leaf.Issuer.String(), Fingerprint: hex.EncodeToString(sum[:]),
		NotBefore: leaf.NotBefore.UTC(), NotAfter: leaf.NotAfter.UTC(), ChangedAt: now.UTC(),
	}, nil
}
