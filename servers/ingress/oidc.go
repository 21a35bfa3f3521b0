package ingress

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/components/network/ranges"
	"miren.dev/runtime/pkg/boundedhttp"
)

const (
	sessionCookie = "runtime_session" // who logged in
	loginCookie   = "runtime_login"   // a login under way
	callbackPath  = "/_auth/callback" // below the path of the route
	logoutPath    = "/_auth/logout"

	sessionLife  = 12 * time.Hour
	loginLife    = 10 * time.Minute
	providerTime = 10 * time.Second // for one call of a provider
	providerAge  = time.Hour        // after which its addresses are asked for again
	providerPoll = 5 * time.Second  // between attempts at one that does not answer
	maxProvider  = 1 << 20          // bytes of an answer of a provider
	maxCookie    = 4000             // bytes; browsers drop longer ones
	maxReturn    = 1000             // bytes of the path to return to
)

// session is who logged in.
type session struct {
	User    string `json:"user"`            // subject at the provider
	Email   string `json:"email,omitempty"` // verified
	Expires int64  `json:"expires"`         // Unix seconds
}

// loginAttempt is a login under way.
type loginAttempt struct {
	State    string `json:"state"`
	Nonce    string `json:"nonce"`
	Verifier string `json:"verifier"` // of PKCE
	Return   string `json:"return"`
	Expires  int64  `json:"expires"` // Unix seconds
}

// login is the login that a route demands.
type login struct {
	gate *gate
	own  *app.RouteOidc

	mu       sync.Mutex
	provider *oidc.Provider
	asked    time.Time // when the provider answered last, or the time for it was over
}

// loginHeader reports whether the ingress alone sets a header of a request.
func loginHeader(name string) bool {
	const prefix = "X-Auth-Request-"
	return len(name) >= len(prefix) && strings.EqualFold(strings.ReplaceAll(name[:len(prefix)], "_", "-"), prefix)
}

// newProviderClient returns the client for providers: projects choose their
// addresses, so it reaches the Internet and the networks in allow only.
func newProviderClient(allow []netip.Prefix) *http.Client {
	d := &net.Dialer{Timeout: 5 * time.Second, ControlContext: func(_ context.Context, _, address string, _ syscall.RawConn) error {
		ok, err := ranges.Outward(address, allow)
		if err == nil && !ok {
			err = errors.New("its address is not public; an operator can allow its network (ingress.oidc_networks)")
		}
		return err
	}}
	return &http.Client{Timeout: providerTime, Transport: boundedhttp.Transport(&http.Transport{
		DialContext: d.DialContext, ForceAttemptHTTP2: true, TLSHandshakeTimeout: 5 * time.Second, MaxResponseHeaderBytes: 64 << 10,
		MaxIdleConns: 20, MaxIdleConnsPerHost: 2, IdleConnTimeout: 30 * time.Second,
	}, maxProvider)}
}

// secret returns a secret of the login, "" if the ingress does not know it.
func (l *login) secret(x *exchange, name string) string {
	return (*x.in.passwords.set.Load())[userKey{l.gate.route, name}]
}

// check permits the request of a visitor with a session. Otherwise it returns a page, or
// answers the request itself (done): it redirects to the provider, ends a login or logs out.
func (l *login) check(x *exchange) (p *page, done bool) {
	key, err := hex.DecodeString(l.secret(x, app.OidcKeyName))
	if err != nil || len(key) != 32 {
		return &page{Status: http.StatusServiceUnavailable, Code: "login_unknown", Title: "Not ready yet",
			Detail: "The ingress does not know the keys of the login of this address yet.", Hint: "Try again in a moment.", retryAfter: 1}, false
	}
	switch base := strings.TrimSuffix(l.gate.path, "/"); cleanPath(x.r.URL.Path) {
	case base + callbackPath:
		return l.callback(x, key)
	case base + logoutPath:
		l.logout(x)
		return nil, true
	}
	var v session
	if l.open(x, key, sessionCookie, &v) && time.Now().Unix() < v.Expires {
		x.out.login = &v
		return nil, false
	}
	if x.r.Method != http.MethodGet || !strings.Contains(strings.Join(x.r.Header["Accept"], ","), "text/html") {
		return &page{Status: http.StatusUnauthorized, Code: "login_required", Title: "Sign in",
			Detail: "This address asks its visitors to log in.", Hint: "Open it in a browser."}, false
	}
	return l.begin(x, key)
}

// begin sends the visitor to the provider.
func (l *login) begin(x *exchange, key []byte) (*page, bool) {
	cfg, _, err := l.config(x)
	if err != nil {
		return l.away(x, err), false
	}
	back := x.r.URL.RequestURI()
	if len(back) > maxReturn {
		back = "/"
	}
	a := loginAttempt{State: rand.Text(), Nonce: rand.Text(), Verifier: oauth2.GenerateVerifier(), Return: back, Expires: time.Now().Add(loginLife).Unix()}
	l.set(x, key, loginCookie, a, loginLife)
	x.redirect(cfg.AuthCodeURL(a.State, oidc.Nonce(a.Nonce), oauth2.S256ChallengeOption(a.Verifier)))
	return nil, true
}

// callback takes the answer of the provider.
func (l *login) callback(x *exchange, key []byte) (*page, bool) {
	again := &page{Status: http.StatusBadRequest, Code: "login_failed", Title: "The login did not succeed",
		Detail: "It took too long, was begun elsewhere, or the provider refused it.", Hint: "Open the address again."}
	q := x.r.URL.Query()
	var a loginAttempt
	if !l.open(x, key, loginCookie, &a) || time.Now().Unix() >= a.Expires || subtle.ConstantTimeCompare([]byte(q.Get("state")), []byte(a.State)) != 1 || q.Get("code") == "" {
		return again, false
	}
	cfg, provider, err := l.config(x)
	if err != nil {
		return l.away(x, err), false
	}
	ctx, cancel := context.WithTimeout(oidc.ClientContext(x.r.Context(), x.in.providers), providerTime)
	defer cancel()
	token, err := cfg.Exchange(ctx, q.Get("code"), oauth2.VerifierOption(a.Verifier))
	if err != nil {
		x.in.cfg.Logger.Info("a login failed", "route", l.gate.route, "error", err)
		return again, false
	}
	raw, _ := token.Extra("id_token").(string)
	id, err := provider.Verifier(&oidc.Config{ClientID: l.own.ClientID}).Verify(ctx, raw)
	if err != nil || id.Nonce != a.Nonce || id.Subject == "" {
		x.in.cfg.Logger.Info("a login failed", "route", l.gate.route, "error", err)
		return again, false
	}
	var claims struct {
		Email    string `json:"email"`
		Verified bool   `json:"email_verified"`
		Groups   groups `json:"groups"`
	}
	if err := id.Claims(&claims); err != nil {
		return again, false
	}
	v := session{User: id.Subject, Expires: time.Now().Add(sessionLife).Unix()}
	if claims.Verified {
		v.Email = strings.ToLower(claims.Email)
	}
	l.drop(x, loginCookie)
	if !l.permits(v, claims.Groups) || !plain(v.User) || !plain(v.Email) {
		return &page{Status: http.StatusForbidden, Code: "not_admitted", Title: "You are not admitted",
			Detail: "You logged in, but this address is not open to you."}, false
	}
	l.set(x, key, sessionCookie, v, sessionLife)
	// One slash only: //host would be another host.
	x.redirect("/" + strings.TrimLeft(a.Return, `/\`))
	return nil, true
}

// groups takes a list of names, or one name.
type groups []string

func (g *groups) UnmarshalJSON(b []byte) error {
	var one string
	if json.Unmarshal(b, &one) == nil {
		*g = groups{one}
		return nil
	}
	var list []string
	if json.Unmarshal(b, &list) == nil {
		*g = list
	}
	return nil // others are no groups of ours
}

// plain reports whether a text can be the value of a header.
func plain(s string) bool {
	return len(s) <= 1000 && !strings.ContainsFunc(s, func(c rune) bool { return c < ' ' || c > '~' })
}

// permits reports whether a visitor of whom the provider knows these groups may enter.
func (l *login) permits(v session, of groups) bool {
	o := l.own
	if len(o.Emails)+len(o.Domains)+len(o.Groups) == 0 {
		return true
	}
	_, domain, _ := strings.Cut(v.Email, "@")
	return v.Email != "" && (slices.Contains(o.Emails, v.Email) || slices.Contains(o.Domains, domain)) ||
		slices.ContainsFunc(of, func(g string) bool { return slices.Contains(o.Groups, g) })
}

// logout ends the session here. The one with the provider goes on.
func (l *login) logout(x *exchange) {
	l.drop(x, sessionCookie)
	l.drop(x, loginCookie)
	h := x.w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Type", "text/plain; charset=utf-8")
	x.started, x.status, x.first = true, http.StatusOK, time.Now()
	x.w.WriteHeader(http.StatusOK)
	_, _ = x.w.Write([]byte("You are logged out here.\n"))
}

// away is the page while the provider cannot be used.
func (l *login) away(x *exchange, err error) *page {
	if x.r.Context().Err() == nil {
		x.in.cfg.Logger.Warn("the provider of a login cannot be used", "route", l.gate.route, "error", err)
	}
	return &page{Status: http.StatusBadGateway, Code: "login_away", Title: "The login is not possible now",
		Detail: "The provider of the login does not answer properly.", Hint: "Try again in a moment. If the address is yours: the log of the ingress says why.", retryAfter: 5}
}

var errNotYet = errors.New("it did not answer a moment ago")

// config returns what a login needs of the provider, which is asked now and then.
func (l *login) config(x *exchange) (*oauth2.Config, *oidc.Provider, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch age := time.Since(l.asked); {
	case l.provider == nil && age < providerPoll:
		return nil, nil, errNotYet
	case l.provider == nil || age > providerAge:
		ctx, cancel := context.WithTimeout(context.Background(), providerTime)
		defer cancel()
		// The provider fetches keys later, with this client and no deadline but its own.
		p, err := oidc.NewProvider(oidc.ClientContext(ctx, x.in.providers), l.own.Issuer)
		l.asked = time.Now() // not before: the visitors who waited for this answer do not ask again
		if err != nil && l.provider == nil {
			return nil, nil, err
		}
		if err == nil {
			l.provider = p
		}
	}
	scheme := "http"
	if x.isSecure() {
		scheme = "https"
	}
	return &oauth2.Config{
		ClientID: l.own.ClientID, ClientSecret: l.secret(x, app.OidcSecretName), Endpoint: l.provider.Endpoint(),
		RedirectURL: scheme + "://" + x.r.Host + strings.TrimSuffix(l.gate.path, "/") + callbackPath,
		Scopes:      l.scopes(),
	}, l.provider, nil
}

func (l *login) scopes() []string {
	s := []string{oidc.ScopeOpenID, "email"}
	if len(l.own.Groups) > 0 {
		s = append(s, "groups")
	}
	return s
}

// isSecure reports whether the client speaks HTTPS, perhaps with a trusted proxy.
func (x *exchange) isSecure() bool {
	return x.r.TLS != nil || x.trusted && x.r.Header.Get("X-Forwarded-Proto") == "https"
}

func (x *exchange) redirect(to string) {
	h := x.w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Location", to)
	h.Set("Content-Length", "0")
	x.started, x.status, x.first = true, http.StatusSeeOther, time.Now()
	x.w.WriteHeader(http.StatusSeeOther)
}

// cookies are encrypted, and bound to their name and route.
func cookieCipher(key []byte) (cipher.AEAD, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCMWithRandomNonce(block)
}

func (l *login) bound(name string) []byte { return []byte(name + "\x00" + string(l.gate.route)) }

func (l *login) set(x *exchange, key []byte, name string, v any, life time.Duration) {
	text, err := json.Marshal(v)
	aead, cerr := cookieCipher(key)
	if err != nil || cerr != nil {
		return // neither can be: the visitor logs in again
	}
	value := base64.RawURLEncoding.EncodeToString(aead.Seal(nil, nil, text, l.bound(name)))
	if len(value) > maxCookie {
		return
	}
	http.SetCookie(x.w, l.cookie(x, name, value, int(life/time.Second)))
}

func (l *login) drop(x *exchange, name string) { http.SetCookie(x.w, l.cookie(x, name, "", -1)) }

func (l *login) cookie(x *exchange, name, value string, age int) *http.Cookie {
	return &http.Cookie{Name: name, Value: value, Path: l.gate.path, MaxAge: age, HttpOnly: true, Secure: x.isSecure(), SameSite: http.SameSiteLaxMode}
}

// open reads a cookie of this login; one of another route or key is none.
func (l *login) open(x *exchange, key []byte, name string, v any) bool {
	aead, err := cookieCipher(key)
	if err != nil {
		return false
	}
	for _, c := range x.r.CookiesNamed(name) {
		sealed, err := base64.RawURLEncoding.DecodeString(c.Value)
		if err != nil || len(c.Value) > maxCookie {
			continue
		}
		if text, err := aead.Open(nil, nil, sealed, l.bound(name)); err == nil && json.Unmarshal(text, v) == nil {
			return true
		}
	}
	return false
}

// newLogin returns the login of a gate; nil: it demands none.
func newLogin(g *gate) *login {
	if g.own.Oidc == nil {
		return nil
	}
	return &login{gate: g, own: g.own.Oidc}
}

// hasLogin reports whether a route has secrets that the ingress asks for.
func hasLogin(r *app.Route) bool {
	return r != nil && r.Spec.Settings != nil && r.Spec.Settings.Oidc != nil
}
