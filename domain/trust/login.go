package trust

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"slices"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/rpc"
)

// Client is the server as a client of an issuer at which people log in.
type Client struct {
	Issuer string // URL; a rule must name it
	ID     string // which is the audience of its tokens
	Secret string // "": a public client
	Scopes []string
}

// Attempt is a login under way. The browser that began it keeps it, sealed.
type Attempt struct {
	State    string `json:"state"`
	Nonce    string `json:"nonce"`
	Verifier string `json:"verifier"` // of PKCE
}

// Begin returns where a browser is sent to log in, from where it comes back to redirect.
// Errors: FailedPrecondition if no rule names the issuer, Unavailable if it does not answer.
func (r *Rules) Begin(c *Client, redirect string) (string, *Attempt, error) {
	_, cfg, err := r.client(c, redirect)
	if err != nil {
		return "", nil, err
	}
	a := &Attempt{State: rand.Text(), Nonce: rand.Text(), Verifier: oauth2.GenerateVerifier()}
	return cfg.AuthCodeURL(a.State, oidc.Nonce(a.Nonce), oauth2.S256ChallengeOption(a.Verifier)), a, nil
}

// Finish returns the identity of a login, by what the browser came back with. Errors are
// those of Begin and of Authenticate.
func (r *Rules) Finish(ctx context.Context, c *Client, redirect string, a *Attempt, state, code string) (rpc.Identity, error) {
	if subtle.ConstantTimeCompare([]byte(state), []byte(a.State)) != 1 || code == "" {
		return rpc.Identity{}, errs.New(errs.Unauthenticated, "the login was not begun here, or its issuer refused it").WithHint("log in again")
	}
	is, cfg, err := r.client(c, redirect)
	if err != nil {
		return rpc.Identity{}, err
	}
	got, err := cfg.Exchange(oidc.ClientContext(ctx, is.client), code, oauth2.VerifierOption(a.Verifier))
	var answer *oauth2.RetrieveError
	switch {
	case errors.As(err, &answer) && answer.Response.StatusCode < 500:
		return rpc.Identity{}, refused("the issuer %s refused the login: %s %s", c.Issuer, answer.ErrorCode, answer.ErrorDescription)
	case err != nil:
		return rpc.Identity{}, is.away(err)
	}
	token, _ := got.Extra("id_token").(string)
	return r.authenticate(ctx, token, func(t *oidc.IDToken) error {
		if t.Issuer != c.Issuer || !slices.Contains(t.Audience, c.ID) || subtle.ConstantTimeCompare([]byte(t.Nonce), []byte(a.Nonce)) != 1 {
			return refused("the token is not of this login")
		}
		return nil
	})
}

// client returns what a login needs of the issuer.
func (r *Rules) client(c *Client, redirect string) (*issuer, *oauth2.Config, error) {
	is := r.now.Load().issuers[c.Issuer]
	if is == nil {
		return nil, nil, errs.New(errs.FailedPrecondition, "no rule names the issuer %s at which people log in", c.Issuer).WithHint("an administrator of the server adds one: api.trust_file, docs/dashboard.md")
	}
	p, err := is.ask()
	if err != nil {
		return nil, nil, err
	}
	return is, &oauth2.Config{ClientID: c.ID, ClientSecret: c.Secret, Endpoint: p.Endpoint(), RedirectURL: redirect, Scopes: c.Scopes}, nil
}
