// Package oidctest is a provider of OpenID Connect for tests: authorization code with
// PKCE, for one client and a visitor whom the test chooses.
package oidctest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

// Provider is a running provider.
type Provider struct {
	*httptest.Server
	ID, Secret string

	mu     sync.Mutex
	key    *ecdsa.PrivateKey
	keyID  string
	claims map[string]any
	codes  map[string]url.Values // requests of codes that were not used
	logins int
}

// New starts a provider until the test ends.
func New(t testing.TB) *Provider {
	t.Helper()
	p := &Provider{ID: "client-" + rand.Text(), Secret: rand.Text(), codes: map[string]url.Values{}, claims: map[string]any{}}
	p.RotateKey(t)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /.well-known/openid-configuration", p.discover)
	mux.HandleFunc("GET /authorize", p.authorize)
	mux.HandleFunc("POST /token", p.token)
	mux.HandleFunc("GET /keys", func(w http.ResponseWriter, _ *http.Request) {
		p.mu.Lock()
		defer p.mu.Unlock()
		answer(w, jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: &p.key.PublicKey, KeyID: p.keyID, Algorithm: string(jose.ES256), Use: "sig"}}})
	})
	p.Server = httptest.NewServer(mux)
	t.Cleanup(p.Close)
	return p
}

// RotateKey has another key sign from now on. Tokens that the last one signed are not valid
// any more.
func (p *Provider) RotateKey(t testing.TB) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.key, p.keyID = key, rand.Text()
}

// NewHanging starts a provider that answers no request until the test ends, and returns its address and a value for
// each request.
func NewHanging(t testing.TB) (url string, calls <-chan struct{}) {
	got, end := make(chan struct{}, 100), make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		got <- struct{}{}
		<-end
	}))
	t.Cleanup(s.Close)
	t.Cleanup(func() { close(end) })
	return s.URL, got
}

// Token returns a token for an audience, as the system of a CI gives its jobs; it is valid
// from now for the time life.
func (p *Provider) Token(t testing.TB, audience string, life time.Duration, claims map[string]any) string {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	token, err := p.sign(audience, life, claims)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// sign is called with mu held.
func (p *Provider) sign(audience string, life time.Duration, claims map[string]any) (string, error) {
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: p.key, KeyID: p.keyID}}, nil)
	if err != nil {
		return "", err
	}
	now := time.Now()
	standard := jwt.Claims{Issuer: p.URL, Audience: jwt.Audience{audience}, IssuedAt: jwt.NewNumericDate(now), Expiry: jwt.NewNumericDate(now.Add(life))}
	return jwt.Signed(signer).Claims(standard).Claims(claims).Serialize()
}

// LogsIn makes the next logins those of a visitor: the claims of the ID token.
func (p *Provider) LogsIn(claims map[string]any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.claims = claims
}

// Logins returns how many tokens were given out.
func (p *Provider) Logins() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.logins
}

func (p *Provider) discover(w http.ResponseWriter, _ *http.Request) {
	answer(w, map[string]any{
		"issuer": p.URL, "authorization_endpoint": p.URL + "/authorize", "token_endpoint": p.URL + "/token", "jwks_uri": p.URL + "/keys",
		"response_types_supported": []string{"code"}, "subject_types_supported": []string{"public"},
		"id_token_signing_alg_values_supported": []string{"ES256"}, "code_challenge_methods_supported": []string{"S256"},
	})
}

// authorize logs the visitor in without asking.
func (p *Provider) authorize(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	back, err := url.Parse(q.Get("redirect_uri"))
	if err != nil || q.Get("client_id") != p.ID || q.Get("response_type") != "code" || q.Get("code_challenge_method") != "S256" || q.Get("state") == "" || q.Get("nonce") == "" {
		http.Error(w, "bad request", http.StatusBadRequest)
		return
	}
	code := rand.Text()
	p.mu.Lock()
	p.codes[code] = q
	p.mu.Unlock()
	back.RawQuery = url.Values{"code": {code}, "state": {q.Get("state")}}.Encode()
	http.Redirect(w, r, back.String(), http.StatusFound)
}

func (p *Provider) token(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	q, ok := p.codes[r.FormValue("code")]
	delete(p.codes, r.FormValue("code"))
	id, secret, basic := r.BasicAuth()
	if !basic {
		id, secret = r.FormValue("client_id"), r.FormValue("client_secret")
	}
	sum := sha256.Sum256([]byte(r.FormValue("code_verifier")))
	if !ok || id != p.ID || subtle.ConstantTimeCompare([]byte(secret), []byte(p.Secret)) != 1 || r.FormValue("redirect_uri") != q.Get("redirect_uri") ||
		base64.RawURLEncoding.EncodeToString(sum[:]) != q.Get("code_challenge") {
		w.WriteHeader(http.StatusBadRequest)
		answer(w, map[string]string{"error": "invalid_grant"})
		return
	}
	all := maps.Clone(p.claims)
	all["nonce"] = q.Get("nonce")
	token, err := p.sign(p.ID, time.Minute, all)
	if err == nil {
		p.logins++
		answer(w, map[string]any{"access_token": rand.Text(), "token_type": "Bearer", "expires_in": 60, "id_token": token})
		return
	}
	http.Error(w, err.Error(), http.StatusInternalServerError)
}

func answer(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // the client has gone
}
