package ingress

import (
	"encoding/json"
	"net/http"
	"net/netip"
	"path"
	"slices"
	"strconv"
	"strings"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/pkg/schema"
)

// gate is what a route asks of its requests. It outlives tables, with the counts
// of its clients, until the settings of the route change. Routes without settings
// have none.
type gate struct {
	route   schema.ID
	text    string // the settings as the table has them
	path    string // of the route
	broken  bool   // the settings cannot be read: every request is refused
	allow   []netip.Prefix
	limiter *limiter // nil: no limit
	users   bool     // the client must be a user
	login   *login   // the visitor must have logged in; nil: need not
	own     app.RouteSettings
}

// gate returns the gate of a route, nil if it has no settings.
func (r *registry) gate(o Route) *gate {
	if o.Settings == "" {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	g := r.gates[o.ID]
	if g == nil || g.text != o.Settings || g.path != o.Path {
		g = newGate(o)
		r.gates[o.ID] = g
	}
	return g
}

func newGate(o Route) *gate {
	g := &gate{route: o.ID, text: o.Settings, path: o.Path}
	if err := json.Unmarshal([]byte(o.Settings), &g.own); err != nil {
		g.broken = true // a newer server's; to let requests through would open what it closes
		return g
	}
	for _, s := range g.own.Allow {
		p, err := app.ParseNetwork(s)
		if err != nil {
			g.broken = true
			return g
		}
		g.allow = append(g.allow, p)
	}
	if r := g.own.Rate; r != nil {
		burst := *r
		if g.own.Burst != nil {
			burst = *g.own.Burst
		}
		g.limiter = newLimiter(*r, burst)
	}
	g.users = len(g.own.Users) > 0
	g.login = newLogin(g)
	return g
}

// retainGates drops the gates of routes that s lacks. r.mu is held.
func (r *registry) retainGates(s *State) {
	if len(r.gates) == 0 {
		return
	}
	with := map[schema.ID]bool{}
	for _, o := range s.Routes {
		with[o.ID] = o.Settings != ""
	}
	for id := range r.gates {
		if !with[id] {
			delete(r.gates, id)
		}
	}
}

// through returns the target as a route with settings reaches it.
func (t *target) through(g *gate) *target {
	if t == nil || g == nil {
		return t
	}
	own := *t
	own.gate = g
	return &own
}

// enter holds the request to the settings of its route. It returns the page for one
// that the route refuses.
func (x *exchange) enter(g *gate) *page {
	x.gate = g
	if g.broken {
		return notReadable()
	}
	if g.allow != nil || g.limiter != nil {
		ip, err := netip.ParseAddr(x.client())
		switch ip = ip.Unmap().WithZone(""); {
		case g.allow != nil && (err != nil || !inNetworks(g.allow, ip)):
			return notAllowed()
		case g.limiter != nil && !g.limiter.allow(ip):
			return tooMany()
		}
	}
	if g.users {
		if p := x.in.passwords.check(x, g); p != nil {
			return p
		}
	}
	if g.login != nil {
		if p, answered := g.login.check(x); p != nil || answered {
			return p.orNothing()
		}
	}
	if t := g.own.Timeout; t != nil {
		x.answerWithin = *t
	}
	x.maxBody = x.in.cfg.MaxBodyBytes
	if n := g.own.MaxBodyBytes; n != nil && (x.maxBody <= 0 || *n < x.maxBody) {
		if x.maxBody = *n; x.out.length > *n {
			return tooLarge(*n)
		}
	}
	return nil
}

// orNothing returns a page also if the request has been answered: fail sends none
// then.
func (p *page) orNothing() *page {
	if p == nil {
		return &page{}
	}
	return p
}

// page returns the route's HTML for a page, empty if it has none.
func (g *gate) page(p *page) string {
	if g == nil || p.Status < 400 {
		return ""
	}
	if own, ok := g.own.ErrorPages[strconv.Itoa(p.Status)]; ok {
		return own
	}
	return g.own.ErrorPages["default"]
}

// cleanPath returns the path by which a route is chosen: an app may take /x/../y
// for /y, so that a gate of /y must see it.
func cleanPath(p string) string {
	if !strings.Contains(p, "//") && !strings.Contains(p, "/.") {
		return p
	}
	return path.Clean("/" + p)
}

// evades reports whether the app may take a request for one of a route that restricts access,
// though another route has it: apps differ in what they make of dot segments, empty segments and
// backslashes, and some read //host/path as a URL.
func (x *exchange) evades(t *table, host string, tg *target) bool {
	p := x.r.URL.Path
	if !strings.Contains(p, `\`) && cleanPath(p) == p {
		return false
	}
	slashed := strings.ReplaceAll(p, `\`, "/")
	readings := []string{p, path.Clean("/" + slashed)}
	if strings.HasPrefix(slashed, "//") {
		_, rest, _ := strings.Cut(strings.TrimLeft(slashed, "/"), "/")
		readings = append(readings, path.Clean("/"+rest))
	}
	for _, as := range readings {
		if o := t.match(host, as, x.in.cfg.LocalDomains); o != nil && o.gate != tg.gate && o.gate.restricts() {
			return true
		}
	}
	return false
}

// restricts reports whether a route does not permit every request.
func (g *gate) restricts() bool {
	return g != nil && (g.broken || g.allow != nil || g.users || g.login != nil)
}

// settingsOf returns the settings of a route as the table has them.
func settingsOf(r *app.Route) string {
	if r.Spec.Settings == nil {
		return ""
	}
	b, err := json.Marshal(r.Spec.Settings)
	if err != nil {
		return "unreadable"
	}
	return string(b)
}

// away returns what visitors read while an app is under maintenance, empty if it is
// not.
func away(a *app.App) string {
	m := a.Spec.Maintenance
	if m == nil {
		return ""
	}
	if m.Message == "" {
		return "It is back soon."
	}
	return m.Message
}

// speaksH2C reports whether the service at a port speaks HTTP/2.
func speaksH2C(ports []sandbox.Port, number int64) bool {
	return slices.ContainsFunc(ports, func(p sandbox.Port) bool {
		return p.Number == number && p.Name == string(app.ServiceProtocolH2c)
	})
}

func maintenance(app, message string) *page {
	return &page{Status: http.StatusServiceUnavailable, Code: "maintenance", Title: "Under maintenance", Detail: message,
		Hint: "If the app is yours: `r app maintenance off --app " + app + "` ends it.", retryAfter: 60}
}

func notReadable() *page {
	return &page{Status: http.StatusServiceUnavailable, Code: "route_settings", Title: "This address is not served",
		Detail: "The settings of its route cannot be read by this version of the ingress.", Hint: "If it is yours: upgrade the ingress, or set the route again."}
}

func noRoute(name string) *page {
	return &page{Status: http.StatusForbidden, Code: "no_route", Title: "This app answers at other addresses",
		Detail: "A route of the app restricts who may visit it, and this address is none of its routes.",
		Hint:   "If it is yours: `r route set HOST --app " + name + "` makes this address a route, and `r route configure` restricts it."}
}

func ambiguous() *page {
	return &page{Status: http.StatusBadRequest, Code: "ambiguous_path", Title: "This path can be read in two ways",
		Detail: "It has dot segments, empty segments or backslashes, and one of its readings is a path that not everyone may visit.",
		Hint:   "Ask for the path without them."}
}

func notAllowed() *page {
	return &page{Status: http.StatusForbidden, Code: "not_allowed", Title: "Your address is not admitted",
		Detail: "This address answers to certain networks only."}
}

func tooMany() *page {
	return &page{Status: http.StatusTooManyRequests, Code: "too_many_requests", Title: "Too many requests",
		Detail: "Your address makes more requests than this one answers.", Hint: "Try again in a moment.", retryAfter: 1}
}
