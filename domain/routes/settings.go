package routes

import (
	"context"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"golang.org/x/crypto/bcrypt"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/domain/projects"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// ConfigureRequest changes settings of a route.
type ConfigureRequest struct {
	Project, Host, Path string
	Settings            app.RouteSettings // those that change; those that are absent or false stay
	Passwords           map[string]string // of users that are added or changed
	OIDCSecret          string            // of Settings.Oidc
	RemoveUsers         []string
	Reset               []string // names of settings that are removed first
}

var userName = regexp.MustCompile(app.UserNamePattern)

// maxErrorPages bounds the error pages of a route.
const maxErrorPages = 8

// Configure changes what the ingress does with the requests of a route. Errors:
// InvalidArgument for a setting that it cannot have, NotFound if the project has
// no such route.
func (s *Service) Configure(ctx context.Context, req ConfigureRequest) (*app.Route, error) {
	host, path, err := normalize(req.Host, req.Path)
	if err != nil {
		return nil, err
	}
	pid, err := projects.Find(ctx, s.Store, req.Project)
	if err != nil {
		return nil, err
	}
	users, err := s.hash(req.Passwords)
	if err != nil {
		return nil, err
	}
	login, err := s.login(req)
	if err != nil {
		return nil, err
	}
	var r *app.Route
	err = entity.Retry(ctx, func() error {
		r, err = s.find(ctx, host, path)
		if err == nil && r.Project != pid {
			err = errs.New(errs.NotFound, "there is no route %s%s in this project", host, path).WithHint("`r route list` lists them")
		}
		if err != nil {
			return err
		}
		if req.Settings.Oidc != nil {
			req.Settings.Oidc = login.on(r.Spec.Settings)
		}
		r.Spec.Settings, err = apply(r.Spec.Settings, req, users)
		if err != nil {
			return entity.Final(err)
		}
		return entity.AsConflict(entity.UpdateSpec(ctx, s.Store, r))
	})
	if err != nil {
		return nil, err
	}
	return r, nil
}

// hash seals the hashes of passwords.
func (s *Service) hash(passwords map[string]string) (map[string]schema.Secret, error) {
	users := map[string]schema.Secret{}
	if len(passwords) > app.MaxRouteUsers {
		return nil, errs.New(errs.InvalidArgument, "%d users, but at most %d", len(passwords), app.MaxRouteUsers)
	}
	for user, password := range passwords {
		switch {
		case !userName.MatchString(user):
			return nil, errs.New(errs.InvalidArgument, "%q is not the name of a user", user[:min(len(user), 100)]).WithHint("letters, digits and ._@-, at most 64")
		case password == "" || len(password) > app.MaxUserPassword:
			return nil, errs.New(errs.InvalidArgument, "the password of %s is empty or longer than %d bytes", user, app.MaxUserPassword)
		case s.Sealer == nil:
			return nil, errs.New(errs.FailedPrecondition, "this server cannot seal passwords")
		}
		h, err := bcrypt.GenerateFromPassword([]byte(password), bcrypt.DefaultCost)
		if err != nil {
			return nil, errs.New(errs.Internal, "hash the password of %s: %w", user, err)
		}
		if users[user], err = s.Sealer.Seal(string(h)); err != nil {
			return nil, err
		}
	}
	return users, nil
}

// apply returns the settings of a route after a request; nil: none.
func apply(old *app.RouteSettings, req ConfigureRequest, users map[string]schema.Secret) (*app.RouteSettings, error) {
	n := app.RouteSettings{}
	if old != nil {
		n = *old
	}
	n.Users, n.ErrorPages = maps.Clone(n.Users), maps.Clone(n.ErrorPages)
	if err := reset(&n, req.Reset); err != nil {
		return nil, err
	}
	set := req.Settings
	if len(set.Users) > 0 {
		return nil, errs.New(errs.InvalidArgument, "users are set by their passwords")
	}
	change(&n.Timeout, set.Timeout)
	change(&n.MaxBodyBytes, set.MaxBodyBytes)
	change(&n.Rate, set.Rate)
	change(&n.Burst, set.Burst)
	if len(set.Allow) > 0 {
		n.Allow = set.Allow
	}
	if set.Oidc != nil {
		n.Oidc = set.Oidc
	}
	for to, on := range map[**bool]*bool{&n.Compress: set.Compress, &n.Sticky: set.Sticky} {
		if on != nil && *on {
			*to = on
		}
	}
	if n.Users == nil {
		n.Users = map[string]schema.Secret{}
	}
	maps.Copy(n.Users, users)
	for _, u := range req.RemoveUsers {
		if _, ok := n.Users[u]; !ok {
			return nil, errs.New(errs.NotFound, "the route has no user %q", u[:min(len(u), 100)])
		}
		delete(n.Users, u)
	}
	if n.ErrorPages == nil {
		n.ErrorPages = map[string]string{}
	}
	maps.Copy(n.ErrorPages, set.ErrorPages)
	return check(&n)
}

func change[T any](to **T, v *T) {
	if v != nil {
		*to = v
	}
}

// reset removes settings by their names.
func reset(n *app.RouteSettings, list []string) error {
	all := map[string]func(){
		"timeout": func() { n.Timeout = nil }, "max_body_bytes": func() { n.MaxBodyBytes = nil }, "allow": func() { n.Allow = nil },
		"rate": func() { n.Rate, n.Burst = nil, nil }, "burst": func() { n.Burst = nil }, "users": func() { n.Users = nil },
		"compress": func() { n.Compress = nil }, "sticky": func() { n.Sticky = nil }, "error_pages": func() { n.ErrorPages = nil },
		"oidc": func() { n.Oidc = nil },
	}
	for _, name := range list {
		f := all[name]
		if f == nil {
			return errs.New(errs.InvalidArgument, "there is no setting %q of a route", name).
				WithHint("one of %s", strings.Join(slices.Sorted(maps.Keys(all)), ", "))
		}
		f()
	}
	return nil
}

// check refuses what the schema cannot.
func check(n *app.RouteSettings) (*app.RouteSettings, error) {
	invalid := func(format string, args ...any) error { return errs.New(errs.InvalidArgument, format, args...) }
	if len(n.Allow) > app.MaxRouteNetworks {
		return nil, invalid("%d networks, but at most %d", len(n.Allow), app.MaxRouteNetworks)
	}
	for _, s := range n.Allow {
		if _, err := app.ParseNetwork(s); err != nil {
			return nil, err
		}
	}
	if t := n.Timeout; t != nil && (*t < app.MinRouteTimeout || *t > app.MaxRouteTimeout) {
		return nil, invalid("timeout %v is not between %v and %v", *t, app.MinRouteTimeout, app.MaxRouteTimeout)
	}
	for _, f := range []struct {
		name string
		v    *int64
		max  int64
	}{{"rate", n.Rate, app.MaxRouteRate}, {"burst", n.Burst, app.MaxRouteRate}, {"max_body_bytes", n.MaxBodyBytes, app.MaxRouteBody}} {
		if f.v != nil && (*f.v < 1 || *f.v > f.max) {
			return nil, invalid("%s %d is not between 1 and %d", f.name, *f.v, f.max)
		}
	}
	if n.Burst != nil && n.Rate == nil {
		return nil, invalid("burst is set, but rate is not")
	}
	if len(n.Users) > app.MaxRouteUsers {
		return nil, invalid("%d users, but at most %d", len(n.Users), app.MaxRouteUsers)
	}
	if len(n.ErrorPages) > maxErrorPages {
		return nil, invalid("%d error pages, but at most %d", len(n.ErrorPages), maxErrorPages)
	}
	for status, text := range n.ErrorPages {
		if c, err := strconv.Atoi(status); status != "default" && (err != nil || c < 400 || c > 599 || len(status) != 3) {
			return nil, errs.New(errs.InvalidArgument, "error page %q is not that of a status", status[:min(len(status), 100)]).WithHint("400 to 599, or default")
		}
		if text == "" || len(text) > app.MaxErrorPage || !utf8.ValidString(text) {
			return nil, invalid("the error page of %s is empty, longer than %d bytes, or not UTF-8", status, app.MaxErrorPage)
		}
	}
	if len(n.Users) == 0 {
		n.Users = nil
	}
	if len(n.ErrorPages) == 0 {
		n.ErrorPages = nil
	}
	if n.Timeout == nil && n.MaxBodyBytes == nil && n.Allow == nil && n.Rate == nil && n.Users == nil && n.Compress == nil && n.Sticky == nil && n.ErrorPages == nil && n.Oidc == nil {
		return nil, nil
	}
	return n, nil
}

// passwordPage is of how many routes Passwords returns the users at once.
const passwordPage = 50

// Passwords returns the users of a page of the routes after an id, and the last id
// of the page if there are more. Those whose hash cannot be opened are left out.
func (s *Service) Passwords(ctx context.Context, after string) (out []app.RoutePassword, last string, err error) {
	all, _, err := entity.List[app.Route](ctx, s.Store, entity.Query{})
	if err != nil {
		return nil, "", err
	}
	all = slices.DeleteFunc(all, func(r *app.Route) bool {
		return string(r.ID) <= after || r.Spec.Settings == nil || len(r.Spec.Settings.Users) == 0 && r.Spec.Settings.Oidc == nil
	})
	slices.SortFunc(all, func(a, b *app.Route) int { return strings.Compare(string(a.ID), string(b.ID)) })
	if len(all) > passwordPage {
		all = all[:passwordPage]
		last = string(all[passwordPage-1].ID)
	}
	out = []app.RoutePassword{}
	for _, r := range all {
		users := r.Spec.Settings.Users
		for _, u := range slices.Sorted(maps.Keys(users)) {
			if h, err := s.Sealer.Open(users[u]); err == nil {
				out = append(out, app.RoutePassword{Route: id.Route(r.ID), User: u, Hash: h})
			}
		}
		out = append(out, s.loginSecrets(r)...)
	}
	return out, last, nil
}
