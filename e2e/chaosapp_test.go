package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"miren.dev/runtime/testsupport/wait"
)

// chaosServing is what a version of an app answers with: the version of its source, and the value of its secret.
type chaosServing struct{ source, secret string }

// chaosVersion is a version of an app whose deployment was acknowledged.
type chaosVersion struct {
	number int
	chaosServing
}

// chaosApp is the app of a client.
type chaosApp struct {
	name, dir string
	deployed  bool // a deployment was acknowledged, so the app exists
	// serving is what may serve: what was acknowledged, and what has an unknown outcome. It is empty before the first
	// deployment.
	serving  []chaosServing
	secrets  []string // what the secret of its environment may be
	versions []chaosVersion
	newest   int // number of the newest version that was acknowledged
	routes   []string
	previews []*chaosPreview
	// changing: the server may roll it out by itself, since an operation on its addon has an unknown outcome.
	changing bool
	addon    string // the addon whose address its environment has; "": none, or it is not known
}

// chaosPreview is a preview of an app.
type chaosPreview struct {
	name    string
	sources []string // what may serve
	sure    bool     // its first deployment was acknowledged
}

const maxPreviews = 2 // of a client

func newChaosApp(n int, dir string) chaosApp {
	return chaosApp{name: fmt.Sprintf("app-%d", n), dir: dir, secrets: []string{""}}
}

// with returns what may serve of some sources with the environment of the app.
func (a *chaosApp) with(sources ...string) (all []chaosServing) {
	for _, source := range sources {
		for _, secret := range a.secrets {
			all = addNew(all, chaosServing{source, secret})
		}
	}
	return all
}

// sources returns the sources of what may serve.
func (a *chaosApp) sources() (all []string) {
	for _, s := range a.serving {
		all = addNew(all, s.source)
	}
	return all
}

func addNew[T comparable](list []T, more ...T) []T {
	for _, m := range more {
		if !slices.Contains(list, m) {
			list = append(list, m)
		}
	}
	return list
}

// rolledOut notes how a deployment ended that lets next serve. It returns whether that was acknowledged.
func (a *chaosApp) rolledOut(next []chaosServing, out string, f *failure) bool {
	if f != nil {
		a.serving = addNew(a.serving, next...)
		return false
	}
	a.serving, a.deployed = next, true
	for line := range strings.Lines(out) {
		var result struct{ Event, Version string }
		if json.Unmarshal([]byte(line), &result) != nil || result.Event != "result" {
			continue
		}
		if n, err := strconv.Atoi(strings.TrimPrefix(result.Version, "v")); err == nil {
			a.newest = max(a.newest, n)
			if len(next) == 1 {
				a.versions = append(a.versions, chaosVersion{n, next[0]})
			}
		}
	}
	return true
}

// write makes another version of the source, and returns what the app says then.
func (c *chaosClient) write() string {
	version := c.name("r")
	dockerfile := fmt.Sprintf("FROM scratch\nCOPY load /load\nENV VERSION=%s\nCMD [\"/load\"]\n", version)
	if err := os.WriteFile(filepath.Join(c.app.dir, "Dockerfile"), []byte(dockerfile), 0o644); err != nil {
		c.problem("%v", err)
	}
	return version
}

// deploySource deploys the source with flags.
func (c *chaosClient) deploySource(ctx context.Context, flags ...string) (string, *failure) {
	args := append([]string{"app", "deploy", "--app", c.app.name}, flags...)
	return c.opIn(ctx, chaosInput{dir: c.app.dir}, func() bool { return true }, args...)
}

func (c *chaosClient) deploy(ctx context.Context) {
	next := c.app.with(c.write())
	out, f := c.deploySource(ctx)
	c.app.rolledOut(next, out, f)
}

// canary deploys a version with a share of the requests, and promotes it or takes the share away.
func (c *chaosClient) canary(ctx context.Context) {
	promote, share := c.rng.IntN(2) == 0, 1+c.rng.IntN(99)
	if !c.app.deployed {
		return
	}
	before, next := c.app.serving, c.app.with(c.write())
	if _, f := c.deploySource(ctx, "--canary", strconv.Itoa(share)); f != nil {
		c.app.serving = addNew(c.app.serving, next...)
		return
	}
	c.app.serving = addNew(slices.Clone(before), next...)
	c.readApp(ctx)
	if promote || c.app.changing { // without a canary, rollback would serve a version before
		out, f := c.op(ctx, !c.app.changing, "app", "promote", c.app.name)
		c.app.rolledOut(next, out, f)
		return
	}
	out, f := c.op(ctx, true, "app", "rollback", c.app.name)
	c.app.rolledOut(before, out, f)
}

// rollback serves one of the latest versions again, with the environment of that time, but without a detached addon.
func (c *chaosClient) rollback(ctx context.Context) {
	which := c.rng.IntN(3)
	if len(c.app.versions) == 0 {
		return
	}
	v := c.app.versions[max(0, len(c.app.versions)-1-which)]
	// Not found: many versions have been made since.
	out, f := c.op(ctx, false, "app", "rollback", c.app.name, "--to", fmt.Sprintf("v%d", v.number))
	c.app.addon = ""
	if c.app.rolledOut([]chaosServing{v.chaosServing}, out, f) {
		c.app.secrets = []string{v.secret}
		return
	}
	for _, s := range c.app.serving { // the app has the environment of one of them
		c.app.secrets = addNew(c.app.secrets, s.secret)
	}
}

// ofApp is an operation on the app, if it was deployed. done says that it was acknowledged.
func (c *chaosClient) ofApp(ctx context.Context, args ...string) (out string, f *failure, done bool) {
	if !c.app.deployed {
		return "", nil, false
	}
	out, f = c.op(ctx, len(c.app.serving) == 1, args...)
	return out, f, f == nil
}

// rollout is an operation on the app that rolls out the active version with the environment of the app.
func (c *chaosClient) rollout(ctx context.Context, in chaosInput, args ...string) bool {
	out, f := c.opIn(ctx, in, func() bool { return len(c.app.serving) == 1 }, args...)
	return c.app.rolledOut(c.app.with(c.app.sources()...), out, f)
}

func (c *chaosClient) env(ctx context.Context) {
	value := c.name("v")
	if c.app.deployed {
		c.rollout(ctx, chaosInput{}, "app", "env", "set", "--app", c.app.name, "AT="+value)
	}
}

// secretMark begins the values of secrets.
const secretMark = "the-secret-of-chaos"

func (c *chaosClient) appSecret(ctx context.Context) {
	value := c.name(secretMark)
	if !c.app.deployed {
		return
	}
	before := c.app.serving
	c.app.secrets = addNew(c.app.secrets, value)
	in := chaosInput{stdin: "SECRET=" + value + "\n"}
	if !c.rollout(ctx, in, "app", "env", "set", "--secret", "--stdin", "--app", c.app.name) {
		c.app.serving = addNew(c.app.serving, before...)
		return
	}
	sources := c.app.sources()
	c.app.secrets = []string{value}
	c.app.serving = c.app.with(sources...)
	if len(c.app.serving) == 1 {
		c.app.versions = append(c.app.versions, chaosVersion{c.app.newest, c.app.serving[0]})
	}
	c.readApp(ctx)
}

// projectSecret sets a secret of the project, changes it, or deletes it.
func (c *chaosClient) projectSecret(ctx context.Context) {
	name := fmt.Sprintf("secret-%d", c.n)
	in := chaosInput{stdin: c.name(secretMark) + "\n"}
	if c.rng.IntN(3) == 0 {
		c.op(ctx, false, "secret", "delete", name)
		return
	}
	c.opIn(ctx, in, func() bool { return true }, "secret", "set", name, "--hosts", "example.com")
}

func (c *chaosClient) scaleApp(ctx context.Context) {
	c.ofApp(ctx, "app", "scale", "--app", c.app.name, fmt.Sprintf("web=%d", 1+c.rng.IntN(2)))
}

func (c *chaosClient) restartApp(ctx context.Context) { c.ofApp(ctx, "app", "restart", c.app.name) }

func (c *chaosClient) runTask(ctx context.Context) {
	c.ofApp(ctx, "task", "run", "once", "--app", c.app.name, "--detach")
}

func (c *chaosClient) changeRoutes(ctx context.Context) {
	host := c.name("host") + ".example.com"
	if len(c.app.routes) > 2 {
		c.op(ctx, false, "route", "delete", c.app.routes[0])
		c.app.routes = c.app.routes[1:]
		return
	}
	if _, _, done := c.ofApp(ctx, "route", "set", host, "--app", c.app.name); done {
		c.app.routes = append(c.app.routes, host)
	}
}

// changePreviews deploys a preview, promotes it, or deletes the oldest.
func (c *chaosClient) changePreviews(ctx context.Context) {
	name, what := c.name("pr"), c.rng.IntN(4)
	if !c.app.deployed {
		return
	}
	if len(c.app.previews) > 0 {
		p := c.app.previews[0]
		switch {
		case what == 0 && p.sure:
			out, f := c.op(ctx, true, "app", "promote", c.app.name, "--preview", p.name)
			c.app.rolledOut(c.app.with(p.sources...), out, f)
			return
		case what == 1: // replaced
			name = p.name
		case len(c.app.previews) == maxPreviews:
			c.op(ctx, p.sure, "preview", "delete", p.name, "--app", c.app.name)
			c.app.previews = c.app.previews[1:]
			return
		}
	}
	i := slices.IndexFunc(c.app.previews, func(p *chaosPreview) bool { return p.name == name })
	if i < 0 {
		i = len(c.app.previews)
		c.app.previews = append(c.app.previews, &chaosPreview{name: name})
	}
	p, source := c.app.previews[i], c.write()
	p.sources = append(p.sources, source)
	if _, f := c.deploySource(ctx, "--preview", name); f == nil {
		p.sources, p.sure = []string{source}, true
	}
}

// readApp fails the test if the app answers as something that was replaced. It may fail to answer: what it needs may
// have been killed.
func (c *chaosClient) readApp(context.Context) {
	if c.app.deployed {
		if code, said, err := c.served(c.app.name + ".localhost"); err == nil && code == http.StatusOK && !slices.Contains(c.app.serving, said) {
			c.problem("client %d: %s answers as %q, want one of %q", c.n, c.app.name, said, c.app.serving)
		}
	}
}

// served returns what the app says at a host.
func (c *chaosClient) served(host string) (int, chaosServing, error) {
	code, body, err := c.getHost(host, "/env?name=SECRET")
	source, secret, _ := strings.Cut(body, " ")
	return code, chaosServing{source, secret}, err
}

// checkApp: the app, its routes and its previews answer as was acknowledged.
func (c *chaosClient) checkApp() {
	if !c.app.deployed {
		return
	}
	for _, host := range append([]string{c.app.name + ".localhost"}, c.app.routes...) {
		wait.NoError(c.t, host+" serves", func() error {
			code, said, err := c.served(host)
			if err != nil || code != http.StatusOK || !slices.Contains(c.app.serving, said) {
				return fmt.Errorf("%d %.200q %w, want one of %q", code, said, err, c.app.serving)
			}
			return nil
		}, wait.Within(settled))
	}
	for _, p := range c.app.previews {
		if !p.sure {
			continue
		}
		host := p.name + "--" + c.app.name + ".localhost"
		wait.NoError(c.t, host+" serves", func() error {
			code, said, err := c.served(host)
			if err != nil || code != http.StatusOK || !slices.Contains(p.sources, said.source) {
				return fmt.Errorf("%d %.200q %w, want one of %q", code, said, err, p.sources)
			}
			return nil
		}, wait.Within(settled))
	}
	if c.app.addon == "" {
		return
	}
	wait.NoError(c.t, c.app.name+" has the address of "+c.app.addon, func() error {
		code, body, err := c.get(c.app.name, "/env?name=REDIS_URL")
		if err != nil || code != http.StatusOK || !strings.Contains(body, c.app.addon) {
			return fmt.Errorf("%d %.100q %w", code, body, err)
		}
		return nil
	}, wait.Within(settled))
}
