package routes

import (
	"crypto/rand"
	"encoding/hex"
	"net"
	"net/url"
	"strings"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// maxOIDCSecret bounds a client secret, in bytes.
const maxOIDCSecret = 4096

// login is the login of a request, with its secrets sealed.
type login struct {
	new       *app.RouteOidc
	hasSecret bool
}

// login checks the login of a request and seals its secret and a new key of sessions.
func (s *Service) login(req ConfigureRequest) (*login, error) {
	o := req.Settings.Oidc
	invalid := func(format string, args ...any) (*login, error) {
		return nil, errs.New(errs.InvalidArgument, format, args...)
	}
	if o == nil {
		if req.OIDCSecret != "" {
			return invalid("a client secret of OpenID Connect is given, but no provider")
		}
		return nil, nil
	}
	u, err := url.Parse(o.Issuer)
	switch {
	case err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" || len(o.Issuer) > 500:
		return invalid("the issuer %q is no URL such as https://login.example.com", o.Issuer[:min(len(o.Issuer), 100)])
	case u.Scheme != "https" && (u.Scheme != "http" || u.Hostname() != "localhost" && !net.ParseIP(u.Hostname()).IsLoopback()):
		return invalid("the issuer %s is not reached by https", o.Issuer)
	case o.ClientID == "" || len(o.ClientID) > 500:
		return invalid("the client id is empty or longer than 500 bytes")
	case len(req.OIDCSecret) > maxOIDCSecret:
		return invalid("the client secret is longer than %d bytes", maxOIDCSecret)
	case s.Sealer == nil:
		return nil, errs.New(errs.FailedPrecondition, "this server cannot seal secrets")
	}
	n := &app.RouteOidc{Issuer: o.Issuer, ClientID: o.ClientID}
	for _, l := range []struct {
		to    *[]string
		from  []string
		lower bool
	}{{&n.Emails, o.Emails, true}, {&n.Domains, o.Domains, true}, {&n.Groups, o.Groups, false}} {
		if len(l.from) > app.MaxOidcList {
			return invalid("%d addresses, domains or groups, but at most %d", len(l.from), app.MaxOidcList)
		}
		for _, v := range l.from {
			if l.lower {
				v = strings.ToLower(strings.TrimPrefix(strings.TrimSpace(v), "@"))
			}
			if v == "" || len(v) > 320 {
				return invalid("an address, domain or group is empty or longer than 320 bytes")
			}
			*l.to = append(*l.to, v)
		}
	}
	var key [32]byte
	rand.Read(key[:]) // never fails
	for to, text := range map[**schema.Secret]string{&n.CookieKey: hex.EncodeToString(key[:]), &n.ClientSecret: req.OIDCSecret} {
		if text == "" {
			continue
		}
		sealed, err := s.Sealer.Seal(text)
		if err != nil {
			return nil, err
		}
		*to = &sealed
	}
	return &login{n, req.OIDCSecret != ""}, nil
}

// on returns the login for a route with these settings. The secret stays if the
// provider and the id do; the sessions of visitors stay only if the whole login does.
func (l *login) on(old *app.RouteSettings) *app.RouteOidc {
	n := *l.new
	if old != nil && old.Oidc != nil && old.Oidc.Issuer == n.Issuer && old.Oidc.ClientID == n.ClientID && !l.hasSecret {
		n.ClientSecret = old.Oidc.ClientSecret
	}
	return &n
}

// loginSecrets returns what the ingress needs to log visitors of a route in.
func (s *Service) loginSecrets(r *app.Route) (out []app.RoutePassword) {
	o := r.Spec.Settings.Oidc
	if o == nil {
		return nil
	}
	for name, v := range map[string]*schema.Secret{app.OidcSecretName: o.ClientSecret, app.OidcKeyName: o.CookieKey} {
		if v == nil {
			continue
		}
		if text, err := s.Sealer.Open(*v); err == nil {
			out = append(out, app.RoutePassword{Route: id.Route(r.ID), User: name, Hash: text})
		}
	}
	return out
}
