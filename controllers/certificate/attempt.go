package certificate

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"slices"
	"strings"
	"time"

	"golang.org/x/crypto/acme"

	"miren.dev/runtime/api/certificate"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/fault"
)

// Types of challenges.
const (
	typeHTTP = "http-01"
	typeALPN = "tls-alpn-01"
	typeDNS  = "dns-01"
)

const (
	syncTimeout = 20 * time.Second // in which the ingress knows a challenge
	dnsPrefix   = "_acme-challenge."
)

// attempt orders a certificate, or continues its order, and returns its chain and its
// key in PEM.
func (r *Orders) attempt(ctx context.Context, o *certificate.CertificateOrder) (chain, key string, err error) {
	cl, err := r.account(ctx)
	if err != nil {
		return "", "", errs.Wrap(err, "account at the authority")
	}
	order, key, err := r.open(ctx, cl, o)
	if err != nil {
		r.forgetAccount(err)
		return "", "", err
	}
	if order.Status == acme.StatusPending {
		for _, u := range order.AuthzURLs {
			if err := r.authorize(ctx, cl, o, u); err != nil {
				return "", "", err
			}
		}
	}
	if order, err = cl.WaitOrder(ctx, o.Status.URL); err != nil {
		return "", "", err
	}
	var der [][]byte
	if order.Status == acme.StatusValid {
		der, err = fetch(ctx, cl, o.Status.URL)
	} else {
		var csr []byte
		if csr, err = request(o.Spec.Host, key); err != nil {
			return "", "", err
		}
		fault.Point("certificate", "finalize", fault.Before)
		der, err = finalize(ctx, cl, o.Status.URL, order.FinalizeURL, csr)
		fault.Point("certificate", "finalize", fault.After)
	}
	if err != nil {
		return "", "", err
	}
	var b strings.Builder
	for _, c := range der {
		if err := pem.Encode(&b, &pem.Block{Type: "CERTIFICATE", Bytes: c}); err != nil {
			return "", "", err
		}
	}
	return b.String(), key, nil
}

// finalize has an order that is ready signed, and returns the chain.
func finalize(ctx context.Context, cl *acme.Client, url, finalizeURL string, csr []byte) ([][]byte, error) {
	der, _, err := cl.CreateOrderCert(ctx, finalizeURL, csr, true)
	if err == nil || refused(err) || ctx.Err() != nil {
		return der, err
	}
	// The client loses the order if the authority signs later and does not repeat the
	// order's URL in its answer.
	if der, ferr := fetch(ctx, cl, url); ferr == nil {
		return der, nil
	}
	return nil, err
}

// fetch returns the chain of an order that is or is about to be valid.
func fetch(ctx context.Context, cl *acme.Client, url string) ([][]byte, error) {
	for {
		order, err := cl.WaitOrder(ctx, url)
		switch {
		case err != nil:
			return nil, err
		case order.Status != acme.StatusValid:
			return nil, errs.New(errs.Unavailable, "the order is %s after it was ended", order.Status)
		case order.CertURL != "":
			return cl.FetchCert(ctx, order.CertURL, true)
		}
		select { // some authorities say so a moment before they say where the certificate is
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// forgetAccount has the account registered again if the authority does not know it.
func (r *Orders) forgetAccount(err error) {
	var e *acme.Error
	if errors.As(err, &e) && strings.HasSuffix(e.ProblemType, ":accountDoesNotExist") {
		r.acct.mu.Lock()
		defer r.acct.mu.Unlock()
		r.acct.client = nil
	}
}

// open continues the order that is under way, or makes one, and returns the key of
// the certificate.
func (r *Orders) open(ctx context.Context, cl *acme.Client, o *certificate.CertificateOrder) (*acme.Order, string, error) {
	st := &o.Status
	if st.URL != "" && st.Key != nil && st.Directory == r.Config.Directory {
		order, err := cl.GetOrder(ctx, st.URL)
		if err != nil && !refused(err) {
			return nil, "", err
		}
		key, kerr := r.Sealer.Open(*st.Key)
		if kerr != nil {
			return nil, "", kerr
		}
		if err == nil && order.Status != acme.StatusInvalid {
			return order, key, nil
		}
		r.Logger.Info("the order under way cannot be continued", "host", o.Spec.Host, "error", err)
	}
	key, err := newKey()
	if err != nil {
		return nil, "", err
	}
	sealed, err := r.Sealer.Seal(key)
	if err != nil {
		return nil, "", err
	}
	fault.Point("certificate", "order", fault.Before)
	order, err := cl.AuthorizeOrder(ctx, acme.DomainIDs(o.Spec.Host))
	if err != nil {
		return nil, "", err
	}
	st.URL, st.Key, st.Directory = order.URI, &sealed, r.Config.Directory
	return order, key, r.write(ctx, "ordered", o)
}

// request returns the certificate request for a host.
func request(host, key string) ([]byte, error) {
	signer, err := parseKey(key)
	if err != nil {
		return nil, err
	}
	return x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{DNSNames: []string{host}}, signer)
}

// authorize shows the authority that a host is ours.
func (r *Orders) authorize(ctx context.Context, cl *acme.Client, o *certificate.CertificateOrder, url string) error {
	z, err := cl.GetAuthorization(ctx, url)
	if err != nil || z.Status == acme.StatusValid {
		return err
	}
	ch, err := r.choose(o, z)
	if err != nil {
		return err
	}
	if err := r.present(ctx, cl, o, z.Identifier.Value, ch); err != nil {
		return err
	}
	if ch.Status == acme.StatusPending {
		fault.Point("certificate", "accept", fault.Before)
		if _, err := cl.Accept(ctx, ch); err != nil {
			return err
		}
		fault.Point("certificate", "accept", fault.After)
	}
	_, err = cl.WaitAuthorization(ctx, url)
	return err
}

// choose returns one of the challenges of an authorization: after each failed attempt
// the next one that is configured.
func (r *Orders) choose(o *certificate.CertificateOrder, z *acme.Authorization) (*acme.Challenge, error) {
	if z.Status != acme.StatusPending {
		return nil, errs.New(errs.FailedPrecondition, "the authorization of %s is %s", z.Identifier.Value, z.Status)
	}
	types := r.Config.Challenges
	if len(types) == 0 {
		types = []string{typeHTTP, typeALPN}
	}
	if z.Wildcard || strings.HasPrefix(o.Spec.Host, "*.") {
		types = []string{typeDNS}
	}
	var can []*acme.Challenge
	for _, t := range types {
		for _, ch := range z.Challenges {
			switch {
			case ch.Type != t || t == typeDNS && r.DNS == nil:
			case ch.Status == acme.StatusProcessing: // accepted before
				return ch, nil
			case ch.Status == acme.StatusPending:
				can = append(can, ch)
			}
		}
	}
	if len(can) == 0 {
		return nil, errs.New(errs.FailedPrecondition, "the authority offers none of %s for %s", strings.Join(types, ", "), z.Identifier.Value)
	}
	return can[int(o.Status.Attempts)%len(can)], nil
}

// present has the answer of a challenge served.
func (r *Orders) present(ctx context.Context, cl *acme.Client, o *certificate.CertificateOrder, host string, ch *acme.Challenge) (err error) {
	c := certificate.Challenge{Type: ch.Type, Host: host, Token: ch.Token}
	if ch.Type == typeDNS {
		c.Answer, err = cl.DNS01ChallengeRecord(ch.Token)
	} else {
		c.Answer, err = cl.HTTP01ChallengeResponse(ch.Token)
	}
	if err != nil {
		return err
	}
	if !slices.Contains(o.Status.Challenges, c) {
		r.cleanUp(ctx, o) // of an attempt that another server did not end
		o.Status.Challenges = []certificate.Challenge{c}
		if err := r.write(ctx, "challenge", o); err != nil {
			return err
		}
	}
	if ch.Type == typeDNS {
		fault.Point("certificate", "dns", fault.Before)
		if err := r.DNS.Present(ctx, dnsPrefix+host, c.Answer); err != nil {
			return err
		}
		fault.Point("certificate", "dns", fault.After)
		return nil
	}
	if r.Ingress == nil {
		return nil
	}
	wait, cancel := context.WithTimeout(ctx, syncTimeout)
	defer cancel()
	return errs.Wrap(r.Ingress.Synced(wait, o.Revision), "the ingress of this server does not answer the authority")
}

// cleanUp removes the DNS records of an order.
func (r *Orders) cleanUp(ctx context.Context, o *certificate.CertificateOrder) {
	for _, c := range o.Status.Challenges {
		if c.Type != typeDNS || r.DNS == nil {
			continue
		}
		if err := r.DNS.Cleanup(ctx, dnsPrefix+c.Host, c.Answer); err != nil {
			r.Logger.Warn("a DNS record of an order stays", "name", dnsPrefix+c.Host, "error", err)
		}
	}
}

// deleted ends an order whose host needs no certificate any more.
func (r *Orders) deleted(ctx context.Context, o *certificate.CertificateOrder) error {
	r.cleanUp(ctx, o)
	return nil
}
