package dashboard

import (
	"context"
	"net/http"
	"net/url"
	"strings"
	"time"

	"miren.dev/runtime/api/core"
	"miren.dev/runtime/domain/trust"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/servers/api"
)

const (
	loginCookie = "runtime_login"
	callback    = Prefix + "/login/callback"
	// attemptTime is how long a login at an issuer may take, finishTime what the server needs at the end.
	attemptTime = 10 * time.Minute
	finishTime  = 20 * time.Second
	// maxReturn bounds the path of the page to return to, in bytes.
	maxReturn = 1000
)

// OIDC is the login by OpenID Connect.
type OIDC struct {
	Client trust.Client
	Rules  *trust.Rules
	URL    string // as browsers reach the server; "": as the request says
}

// attempt is a login under way, as its cookie has it.
type attempt struct {
	trust.Attempt
	Return  string    `json:"return"` // path below /ui/
	Expires time.Time `json:"expires"`
}

// methods answers with how people log in besides by key: the host of the issuer.
func (d *Dashboard) methods(w http.ResponseWriter, _ *http.Request) {
	var out struct {
		OIDC string `json:"oidc,omitempty"`
	}
	if d.cfg.OIDC != nil {
		out.OIDC = d.cfg.OIDC.Client.Issuer
		if u, err := url.Parse(out.OIDC); err == nil {
			out.OIDC = u.Host
		}
	}
	answer(w, out)
}

// redirectURL is where the issuer sends the browser back to.
func (d *Dashboard) redirectURL(r *http.Request) string {
	base := strings.TrimSuffix(d.cfg.OIDC.URL, "/")
	if base == "" {
		base = "http://" + r.Host
		if d.cfg.Secure {
			base = "https://" + r.Host
		}
	}
	return base + callback
}

// begin sends the browser to the issuer.
func (d *Dashboard) begin(w http.ResponseWriter, r *http.Request) {
	if d.cfg.OIDC == nil {
		api.WriteProblem(w, errs.New(errs.NotFound, "the server has no login by OpenID Connect").WithHint("an administrator configures one: dashboard.oidc_issuer, docs/dashboard.md"))
		return
	}
	to, a, err := d.cfg.OIDC.Rules.Begin(&d.cfg.OIDC.Client, d.redirectURL(r))
	if err != nil {
		d.failed(w, r, err)
		return
	}
	page := r.URL.Query().Get("return")
	if len(page) > maxReturn || strings.Contains(page, "..") {
		page = ""
	}
	d.setAttempt(w, seal(d.attempts, attempt{*a, page, time.Now().Add(attemptTime)}), attemptTime)
	redirect(w, r, to)
}

// finish makes a session for the browser that comes back.
func (d *Dashboard) finish(w http.ResponseWriter, r *http.Request) {
	d.setAttempt(w, "", -1)
	var a attempt
	if err := d.attemptOf(r, &a); err != nil {
		d.failed(w, r, err)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), finishTime)
	defer cancel()
	q := r.URL.Query()
	who, err := d.cfg.OIDC.Rules.Finish(ctx, &d.cfg.OIDC.Client, d.redirectURL(r), &a.Attempt, q.Get("state"), q.Get("code"))
	if err != nil {
		d.failed(w, r, err)
		return
	}
	c, err := d.api.As(who)
	if err != nil {
		d.failed(w, r, err)
		return
	}
	// As jobs of CI have it: the audit log has who got the key, and the session ends with it.
	got, err := core.NewKeysClient(c.Client).Exchange(ctx)
	c.Release()
	if err == nil {
		c, err = d.api.Authenticate(ctx, got.Secret)
	}
	if err != nil {
		d.failed(w, r, err)
		return
	}
	defer c.Release()
	d.logIn(w, got.Secret, c)
	redirect(w, r, (&url.URL{Path: Prefix + "/"}).String()+strings.TrimLeft(a.Return, `/\`))
}

// attemptOf reads the login under way of a browser.
func (d *Dashboard) attemptOf(r *http.Request, a *attempt) error {
	c, err := r.Cookie(loginCookie)
	if d.cfg.OIDC == nil || err != nil || !open(d.attempts, c.Value, a) || !time.Now().Before(a.Expires) {
		return errs.New(errs.Unauthenticated, "the login took longer than %s, or was begun in another browser", attemptTime).WithHint("log in again")
	}
	return nil
}

// setAttempt sets the cookie of a login under way; a negative life removes it. The issuer's
// page leads back, so it is sent with navigations from other sites.
func (d *Dashboard) setAttempt(w http.ResponseWriter, value string, life time.Duration) {
	http.SetCookie(w, &http.Cookie{
		Name: loginCookie, Value: value, Path: callback, MaxAge: int(life / time.Second), HttpOnly: true, Secure: d.cfg.Secure, SameSite: http.SameSiteLaxMode,
	})
}

// failed leads to the page of the login, which says in general why it failed. The log has
// the whole: an address must not choose what the page says.
func (d *Dashboard) failed(w http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() != nil {
		return
	}
	d.cfg.Logger.Info("a login by OpenID Connect failed", "error", err)
	why := "failed"
	switch {
	case errs.Is(err, errs.Unauthenticated):
		why = "refused"
	case errs.Is(err, errs.Unavailable), errs.Is(err, errs.ResourceExhausted):
		why = "away"
	}
	redirect(w, r, Prefix+"/?login="+why)
}

func redirect(w http.ResponseWriter, r *http.Request, to string) {
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Referrer-Policy", "no-referrer")
	http.Redirect(w, r, to, http.StatusSeeOther)
}
