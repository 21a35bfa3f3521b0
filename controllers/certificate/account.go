package certificate

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/crypto/acme"

	"miren.dev/runtime/api/certificate"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/version"
)

const (
	requestTimeout = 30 * time.Second // of one request to the authority
	retries        = 4                // of a request that the authority fails to answer
)

// account is the account of the installation at the authority. All servers of a
// store use the same.
type account struct {
	mu     sync.Mutex
	client *acme.Client // once it is registered
}

// account returns a client with the registered account.
func (r *Orders) account(ctx context.Context) (*acme.Client, error) {
	r.acct.mu.Lock()
	defer r.acct.mu.Unlock()
	if r.acct.client != nil {
		return r.acct.client, nil
	}
	key, err := r.accountKey(ctx)
	if err != nil {
		return nil, err
	}
	hc, err := r.httpClient()
	if err != nil {
		return nil, err
	}
	cl := &acme.Client{Key: key, DirectoryURL: r.Config.Directory, HTTPClient: hc, UserAgent: "miren-runtime/" + version.Get().Version, RetryBackoff: backoff}
	var contact []string
	if r.Config.Email != "" {
		contact = []string{"mailto:" + r.Config.Email}
	}
	_, err = cl.Register(ctx, &acme.Account{Contact: contact}, acme.AcceptTOS)
	if errors.Is(err, acme.ErrAccountAlreadyExists) {
		var a *acme.Account
		if a, err = cl.GetReg(ctx, ""); err == nil && !slices.Equal(a.Contact, contact) {
			_, err = cl.UpdateReg(ctx, &acme.Account{Contact: contact})
		}
	}
	if err != nil {
		return nil, err
	}
	r.acct.client = cl
	return cl, nil
}

// backoff returns the wait before a request is made again; 0: not. What asks for
// more than a moment is left to the next attempt.
func backoff(n int, _ *http.Request, res *http.Response) time.Duration {
	if n > retries || res != nil && res.StatusCode == http.StatusTooManyRequests {
		return 0
	}
	return time.Duration(n) * 500 * time.Millisecond
}

func (r *Orders) httpClient() (*http.Client, error) {
	tr := &http.Transport{Proxy: http.ProxyFromEnvironment, ForceAttemptHTTP2: true, IdleConnTimeout: time.Minute, TLSHandshakeTimeout: requestTimeout}
	if f := r.Config.CAFile; f != "" {
		b, err := os.ReadFile(f)
		if err != nil {
			return nil, errs.New(errs.FailedPrecondition, "acme.ca_file: %w", err)
		}
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(b) {
			return nil, errs.New(errs.FailedPrecondition, "acme.ca_file: %s has no certificate in PEM", f)
		}
		tr.TLSClientConfig = &tls.Config{RootCAs: pool}
	}
	return &http.Client{Transport: tr, Timeout: requestTimeout}, nil
}

// accountKey returns the key of the account, which it makes if there is none.
func (r *Orders) accountKey(ctx context.Context) (crypto.Signer, error) {
	for tries := 0; ; tries++ {
		list, _, err := entity.List[certificate.AcmeAccount](ctx, r.Store, entity.Where(certificate.AcmeAccountAttrDirectory, r.Config.Directory))
		if err != nil {
			return nil, err
		}
		if len(list) > 0 {
			text, err := r.Sealer.Open(list[0].Spec.Key)
			if err != nil {
				return nil, err
			}
			return parseKey(text)
		}
		if tries > 1 { // it exists and is not listed
			return nil, errs.New(errs.Internal, "the account at %s cannot be found", r.Config.Directory)
		}
		text, err := newKey()
		if err != nil {
			return nil, err
		}
		a := certificate.NewAcmeAccount()
		a.Spec.Directory = r.Config.Directory
		if a.Spec.Key, err = r.Sealer.Seal(text); err != nil {
			return nil, err
		}
		if err := r.put(ctx, "account", func() error { return entity.Create(ctx, r.Store, a) }); err != nil && !errs.Is(err, errs.AlreadyExists) {
			return nil, err
		}
	}
}

// newKey returns a new private key in PEM.
func newKey() (string, error) {
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return "", err
	}
	der, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		return "", err
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})), nil
}

func parseKey(text string) (crypto.Signer, error) {
	b, _ := pem.Decode([]byte(text))
	if b == nil {
		return nil, errs.New(errs.Corrupt, "a private key is not in PEM")
	}
	k, err := x509.ParsePKCS8PrivateKey(b.Bytes)
	if err != nil {
		return nil, errs.New(errs.Corrupt, "a private key cannot be read")
	}
	signer, ok := k.(crypto.Signer)
	if !ok {
		return nil, errs.New(errs.Corrupt, "a private key is of an unknown type")
	}
	return signer, nil
}
