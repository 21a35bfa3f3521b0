package ingress

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/domain/routes"
	"miren.dev/runtime/pkg/schema"
)

// table maps hosts and paths to sandboxes. It is immutable.
type table struct {
	token    schema.Token
	exact    map[string][]rule
	local    map[string][]rule // by app name
	wildcard map[string][]rule // by suffix with its dot: ".example.com"
	any      []rule
	tcp      map[int64]*tcpPort
	routes   []Route
	apps     []*appState
	guests   map[schema.ID]*guest // sandboxes with previews
	changed  chan struct{}        // closed when a newer table is installed
}

// rule maps a path prefix to its target.
type rule struct {
	path   string // without trailing slash, so "" is every path
	target *target
}

// target is a service of an app: its ready sandboxes of the versions that serve.
type target struct {
	app       *appState
	stats     *serviceStats
	service   string
	version   schema.ID // the active one, or that of a preview
	deploying bool
	away      string // what the page of its maintenance says; empty: it has none
	gate      *gate  // of the route; nil: it has no settings
	closed    bool   // the host is none of the app's routes, of which one restricts access
	missing   bool   // no version that serves has the service, or it takes no requests
	groups    []group
}

// group is the ready sandboxes of one version, and its share of the requests.
type group struct {
	weight int64
	ready
	remote bool // the version has ready sandboxes on nodes that are not reached
	load   *load
}

// ready is the sandboxes of a version of a service that are reached.
type ready struct {
	backends []*backend // of this node
	runners  []*backend // on runners, through the server
}

// runnerCost is how many more requests than one on a runner a sandbox of this node takes before the
// one on the runner, whose requests go through the server and the runner's connection, gets the next.
const runnerCost = 4

// pick chooses a sandbox that is not in tried, or returns nil.
func (r *ready) pick(tried []*backend) *backend {
	here := pick(r.backends, tried)
	if len(r.runners) == 0 {
		return here
	}
	there, now := pick(r.runners, tried), time.Now()
	switch {
	case here == nil:
		return there
	case there == nil, there.down(now):
		return here
	case here.down(now), here.inflight.Load() > there.inflight.Load()+runnerCost:
		return there
	}
	return here
}

// ready returns how many sandboxes a target has.
func (t *target) ready() (n int) {
	for _, g := range t.groups {
		n += len(g.backends) + len(g.runners)
	}
	return n
}

// remote reports whether all sandboxes that a target has are on other nodes.
func (t *target) remote() bool {
	return t.ready() == 0 && slices.ContainsFunc(t.groups, func(g group) bool { return g.remote })
}

// newTable compiles s. Sandboxes and apps that are in the registry keep their
// connections and counts.
func newTable(s *State, reg *registry) *table {
	t := &table{
		token: s.Token, routes: s.Routes, changed: make(chan struct{}),
		exact: map[string][]rule{}, local: map[string][]rule{}, wildcard: map[string][]rule{},
	}
	apps := map[schema.ID]App{}
	for _, a := range s.Apps {
		apps[a.ID] = a
	}
	services := map[Service]bool{}
	for _, sv := range s.Services {
		services[sv] = true
	}
	reached := map[Service]ready{}
	remote := map[Service]bool{}
	for _, sb := range s.Sandboxes {
		key := Service{sb.App, sb.Service, sb.Version}
		r := reached[key]
		switch {
		case sb.Port != 0 && reg.dialService != nil:
			r.runners = append(r.runners, reg.backend(sb))
		case sb.Remote:
			remote[key] = true
			continue
		default:
			r.backends = append(r.backends, reg.backend(sb))
		}
		reached[key] = r
	}
	t.guests = newGuests(s, reg)
	targets := map[Service]*target{}
	// targetOf returns the target of a service; with a version, of that alone.
	targetOf := func(aid schema.ID, service string, version schema.ID) *target {
		a, ok := apps[aid]
		if !ok {
			return nil
		}
		if service == "" {
			service = app.DefaultService
		}
		key := Service{aid, service, version}
		if tg := targets[key]; tg != nil {
			return tg
		}
		tg := &target{app: reg.app(a), stats: reg.stats(a, service), service: service, version: version, deploying: a.Deploying, away: a.Away,
			missing: s.Services != nil && !services[key]}
		targets[key] = tg
		if version != "" {
			tg.away = "" // maintenance is of the app's hosts
			tg.groups = []group{{1, reached[key], remote[key], reg.load(key)}}
			return tg
		}
		for _, sh := range a.Versions {
			if sh.Preview != "" {
				continue
			}
			if tg.version == "" {
				tg.version = sh.Version
			}
			if sh.Weight > 0 {
				key := Service{aid, service, sh.Version}
				tg.missing = tg.missing && !services[key]
				tg.groups = append(tg.groups, group{sh.Weight, reached[key], remote[key], reg.load(key)})
			}
		}
		return tg
	}

	byAge := slices.Clone(s.Apps)
	slices.SortFunc(byAge, func(a, b App) int {
		return cmp.Or(cmp.Compare(a.Created, b.Created), strings.Compare(string(a.ID), string(b.ID)))
	})
	for _, a := range byAge {
		t.apps = append(t.apps, reg.app(a))
		if name := strings.ToLower(a.Name); name != "" && t.local[name] == nil {
			t.local[name] = []rule{{target: targetOf(a.ID, app.DefaultService, "")}}
		}
	}
	owned, claims := ownedRoutes(s.Routes)
	restricted := map[schema.ID]bool{} // apps
	for _, r := range owned {
		version := schema.ID("")
		if r.Preview != "" {
			if version = previewVersion(apps[r.App], r.Preview); version == "" {
				continue // it has ended, or does not serve yet
			}
		}
		tg := targetOf(r.App, r.Service, version)
		if tg == nil {
			continue // the app was deleted or is not listed yet
		}
		tg = tg.through(reg.gate(r))
		restricted[r.App] = restricted[r.App] || r.Preview == "" && tg.gate.restricts()
		rl := rule{path: strings.TrimSuffix(r.Path, "/"), target: tg}
		host := strings.ToLower(r.Host)
		switch {
		case host == "*":
			t.any = append(t.any, rl)
		case strings.HasPrefix(host, "*."):
			t.wildcard[host[1:]] = append(t.wildcard[host[1:]], rl)
		default:
			t.exact[host] = append(t.exact[host], rl)
		}
	}
	for _, rules := range t.local {
		if tg := *rules[0].target; restricted[tg.app.id] {
			tg.closed = true
			rules[0].target = &tg
		}
	}
	t.tcp = newTCPPorts(s.TCP, claims, func(r TCPRoute) *target { return targetOf(r.App, r.Service, "") })
	for _, m := range []map[string][]rule{t.exact, t.wildcard, {"": t.any}} {
		for _, rules := range m {
			slices.SortStableFunc(rules, func(a, b rule) int { return len(b.path) - len(a.path) })
		}
	}
	return t
}

// previewVersion returns the version of a preview of an app, "" if the app has no such preview.
func previewVersion(a App, preview string) schema.ID {
	for _, sh := range a.Versions {
		if sh.Preview == preview {
			return sh.Version
		}
	}
	return ""
}

// ownedRoutes returns the routes without those whose host belongs to another project.
// domain/routes refuses these too, but cannot prevent one that is made otherwise. The claims are
// those of the routes.
func ownedRoutes(list []Route) ([]Route, *routes.Claims) {
	byAge := slices.Clone(list)
	slices.SortFunc(byAge, func(a, b Route) int {
		return cmp.Or(cmp.Compare(a.Created, b.Created), strings.Compare(string(a.ID), string(b.ID)))
	})
	claims := &routes.Claims{}
	return slices.DeleteFunc(byAge, func(r Route) bool { return !claims.Add(strings.ToLower(r.Host), r.Project) }), claims
}

// match finds the target for a normalised host and a path, or nil.
func (t *table) match(host, path string, localDomains []string) *target {
	if tg := find(t.exact[host], path); tg != nil {
		return tg
	}
	for _, d := range localDomains { // with their leading dot
		if name, ok := strings.CutSuffix(host, d); ok {
			if tg := find(t.local[name], path); tg != nil {
				return tg
			}
		}
	}
	if len(t.wildcard) > 0 {
		for rest := host; ; {
			i := strings.IndexByte(rest, '.')
			if i < 0 {
				break
			}
			if tg := find(t.wildcard[rest[i:]], path); tg != nil {
				return tg
			}
			rest = rest[i+1:]
		}
	}
	return find(t.any, path)
}

// find returns the target of the longest prefix of path among rules, which are
// ordered longest first.
func find(rules []rule, path string) *target {
	for i := range rules {
		p := rules[i].path
		if strings.HasPrefix(path, p) && (len(path) == len(p) || path[len(p)] == '/' || p == "") {
			return rules[i].target
		}
	}
	return nil
}

// pick chooses a sandbox that is not in tried, of a version that it draws by the weights of those that have one, and
// returns the load of that version. If there is none it returns nil and the load of the version that it drew first; nil
// if no version serves.
func (t *target) pick(tried []*backend) (*backend, *load) {
	if len(t.groups) == 1 {
		return t.groups[0].pick(tried), t.groups[0].load
	}
	var drawn *load
	for left := t.groups; len(left) > 0; {
		total := int64(0)
		for _, g := range left {
			total += g.weight
		}
		i, n := 0, rand.Int64N(total)
		for n >= left[i].weight {
			n -= left[i].weight
			i++
		}
		if drawn == nil {
			drawn = left[i].load
		}
		if b := left[i].pick(tried); b != nil {
			if left[i].load != drawn {
				drawn.missed.Add(1) // the other version may sleep
			}
			return b, left[i].load
		}
		left = append(slices.Clone(left[:i]), left[i+1:]...)
	}
	return nil, drawn
}

// pick chooses a sandbox that is not in tried: the less busy of two random
// ones. It avoids sandboxes that recently could not be reached while there are
// others. It returns nil if there is none.
func pick(backends, tried []*backend) *backend {
	n := len(backends)
	switch n {
	case 0:
		return nil
	case 1:
		if slices.Contains(tried, backends[0]) {
			return nil
		}
		return backends[0]
	}
	now := time.Now()
	if len(tried) == 0 {
		i := rand.IntN(n)
		j := rand.IntN(n - 1)
		if j >= i {
			j++
		}
		a, b := backends[i], backends[j]
		if aDown, bDown := a.down(now), b.down(now); !aDown && !bDown {
			if b.inflight.Load() < a.inflight.Load() {
				return b
			}
			return a
		}
	}
	var best *backend
	bestDown := false
	off := rand.IntN(n)
	for k := range n {
		b := backends[(off+k)%n]
		if slices.Contains(tried, b) {
			continue
		}
		down := b.down(now)
		if best == nil || bestDown && !down || bestDown == down && b.inflight.Load() < best.inflight.Load() {
			best, bestDown = b, down
		}
	}
	return best
}

// normalHost returns host in lower case without port and trailing dot.
func normalHost(host string) string {
	if i := strings.LastIndexByte(host, ':'); i >= 0 && strings.IndexByte(host[i:], ']') < 0 {
		host = host[:i]
	}
	if len(host) > 0 && host[0] == '[' {
		host = strings.TrimSuffix(host[1:], "]")
	}
	host = strings.TrimSuffix(host, ".")
	for i := range len(host) {
		if c := host[i]; 'A' <= c && c <= 'Z' {
			return strings.ToLower(host)
		}
	}
	return host
}
