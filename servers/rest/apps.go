package rest

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/remote"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// App is an app of the project.
type App struct {
	Name       string         `json:"name" doc:"Name." example:"shop"`
	ID         string         `json:"id" doc:"Id."`
	Version    int64          `json:"version,omitempty" doc:"Number of the version that serves; absent: none does."`
	Ready      int64          `json:"ready" doc:"Sandboxes of that version that are ready."`
	Wanted     int64          `json:"wanted" doc:"Sandboxes that it should have."`
	Traffic    []TrafficShare `json:"traffic" doc:"Versions that get requests, the active one first, previews last."`
	Hosts      []string       `json:"hosts" doc:"Hosts, with their paths, that lead to it."`
	URL        string         `json:"url,omitempty" doc:"URL of the app."`
	Deployment *Deployment    `json:"deployment,omitempty" doc:"The deployment under way; absent: there is none."`
	Last       *Deployment    `json:"last_deployment,omitempty" doc:"The newest deployment that ended."`
	CreatedAt  time.Time      `json:"created_at" doc:"Time of its creation."`
}

// TrafficShare is a version of an app that gets requests.
type TrafficShare struct {
	Version   int64      `json:"version" doc:"Number of the version."`
	Weight    int64      `json:"weight" doc:"Its share of the requests to the app's hosts, in percent; 0 for a preview."`
	Preview   string     `json:"preview,omitempty" doc:"Name of the preview that it is; absent: it gets requests to the app's hosts." example:"pr-12"`
	Host      string     `json:"host,omitempty" doc:"Host of the preview." example:"pr-12--shop.localhost"`
	ExpiresAt *time.Time `json:"expires_at,omitempty" doc:"Time at which the preview ends."`
}

// AppService is a service of an app as it serves.
type AppService struct {
	Name    string `json:"name" doc:"Name." example:"web"`
	Version int64  `json:"version" doc:"Number of the version."`
	State   string `json:"state,omitempty" doc:"State of its sandboxes as a whole."`
	Ready   int64  `json:"ready" doc:"Sandboxes that are ready."`
	Wanted  int64  `json:"wanted" doc:"Sandboxes that it should have."`
	Message string `json:"message,omitempty" doc:"Problem."`
}

// AppVersion is a version of an app.
type AppVersion struct {
	ID        string     `json:"id" doc:"Id."`
	Number    int64      `json:"number" doc:"Counts up within the app."`
	Image     string     `json:"image" doc:"Image with its digest."`
	Commit    string     `json:"commit,omitempty" doc:"Commit of its source."`
	Branch    string     `json:"branch,omitempty" doc:"Branch of its source."`
	ServedAt  *time.Time `json:"served_at,omitempty" doc:"Time at which it got all traffic; absent: it never did."`
	CreatedAt time.Time  `json:"created_at" doc:"Time of its creation."`
}

// AppDetail is an app with its parts.
type AppDetail struct {
	App
	Services   []AppService `json:"services" doc:"Services of the versions that have sandboxes."`
	Containers []Container  `json:"containers" doc:"Its sandboxes."`
	Versions   []AppVersion `json:"versions" doc:"Its versions, newest first."`
	Variables  []string     `json:"variables" doc:"Names of its environment variables, of secret ones too."`
}

// AppList is the apps of the project.
type AppList struct {
	Apps []App `json:"apps" doc:"Apps by name."`
}

// AppInput names an app.
type AppInput struct {
	App string `path:"app" maxLength:"40" pattern:"^[a-z]([a-z0-9-]*[a-z0-9])?$" doc:"Name of the app." example:"shop"`
}

func registerApps(a huma.API) {
	const tag = "apps"
	register(a, op(http.MethodGet, "/apps", "list-apps", tag, "List the apps of the project"), listApps)
	register(a, op(http.MethodGet, "/apps/{app}", "get-app", tag, "Get an app with its services, sandboxes and versions"), getApp)
}

// all returns every entity of a kind that the caller may read and that a query selects.
func all[T any, P entity.ObjectPtr[T]](ctx context.Context, q entity.Query) ([]P, error) {
	q.Kind = P(new(T)).EntityKind().Name
	store := remote.New(callerFrom(ctx).Client)
	var out []P
	for {
		page, err := store.List(ctx, q)
		if err != nil {
			return nil, err
		}
		for i := range page.Records {
			o, err := entity.Decode[T, P](&page.Records[i])
			if err != nil {
				return nil, err
			}
			out = append(out, o)
		}
		if q.Cursor = page.Cursor; q.Cursor == "" {
			return out, nil
		}
	}
}

// ofApp selects the entities that refer to an app.
func ofApp(attr string, a id.App) entity.Query {
	return entity.Query{Index: []entity.IndexMatch{{Attr: attr, Op: entity.IndexEq, Value: schema.EncodeIndexString(string(a))}}}
}

// appParts are entities from which answers about apps are made.
type appParts struct {
	numbers     map[id.AppVersion]int64
	pools       []*sandbox.SandboxPool
	deployments map[id.Deployment]*app.Deployment
	routes      []*app.Route
	names       map[id.App]string
}

// readApps reads the parts of the apps that a query selects by each attribute.
func readApps(ctx context.Context, of func(attr string) entity.Query, apps []*app.App) (*appParts, error) {
	p := &appParts{numbers: map[id.AppVersion]int64{}, deployments: map[id.Deployment]*app.Deployment{}, names: map[id.App]string{}}
	for _, a := range apps {
		p.names[a.GetID()] = a.Name
	}
	versions, err := all[app.AppVersion](ctx, of(app.AppVersionAttrApp))
	if err != nil {
		return nil, err
	}
	for _, v := range versions {
		p.numbers[v.GetID()] = v.Spec.Number
	}
	if p.pools, err = all[sandbox.SandboxPool](ctx, of(sandbox.SandboxPoolAttrApp)); err != nil {
		return nil, err
	}
	deps, err := all[app.Deployment](ctx, of(app.DeploymentAttrApp))
	if err != nil {
		return nil, err
	}
	for _, d := range deps {
		p.deployments[d.GetID()] = d
	}
	p.routes, err = all[app.Route](ctx, of(app.RouteAttrApp))
	return p, err
}

func (p *appParts) app(a *app.App) App {
	st := &a.Status
	out := App{Name: a.Name, ID: string(a.ID), Version: p.numbers[st.Active()], Hosts: []string{}, Traffic: []TrafficShare{}, CreatedAt: a.CreatedAt}
	for _, t := range st.Shares() {
		if t.Preview == "" {
			out.Traffic = append(out.Traffic, TrafficShare{Version: p.numbers[t.Version], Weight: t.Weight})
		}
	}
	for _, t := range st.Previews() {
		out.Traffic = append(out.Traffic, TrafficShare{Version: p.numbers[t.Version], Preview: t.Preview, Host: t.Host, ExpiresAt: t.ExpiresAt})
	}
	for _, pool := range p.pools {
		if pool.Spec.AppVersion == st.Active() && st.Active() != "" {
			out.Ready += pool.Status.Ready
			out.Wanted += pool.Wanted()
		}
	}
	for _, r := range p.routes {
		if r.Spec.App == a.GetID() && r.Spec.Preview == "" {
			out.Hosts = append(out.Hosts, strings.TrimSuffix(r.Spec.Host+r.Spec.Path, "/"))
		}
	}
	slices.Sort(out.Hosts)
	if d := p.deployments[st.ActiveDeployment]; d != nil && !d.Status.Phase.Ended() {
		x := p.deployment(d)
		out.Deployment = &x
	}
	if d := p.deployments[st.LastDeployment]; d != nil {
		x := p.deployment(d)
		out.Last, out.URL = &x, d.Status.URL
	}
	return out
}

func listApps(ctx context.Context, _ *struct{}) (*body[AppList], error) {
	apps, err := all[app.App](ctx, entity.Query{})
	if err != nil {
		return nil, err
	}
	p, err := readApps(ctx, func(string) entity.Query { return entity.Query{} }, apps)
	if err != nil {
		return nil, err
	}
	out := AppList{Apps: []App{}}
	for _, a := range apps {
		out.Apps = append(out.Apps, p.app(a))
	}
	slices.SortFunc(out.Apps, func(a, b App) int { return cmp.Compare(a.Name, b.Name) })
	return &body[AppList]{out}, nil
}

// findApp returns an app of the caller's project by name.
func findApp(ctx context.Context, name string) (*app.App, error) {
	a, err := byName[app.App](ctx, name)
	if errs.Is(err, errs.NotFound) {
		return nil, errs.New(errs.NotFound, "the project has no app %q", name).WithHint("GET /apps lists the apps; `r deploy` makes one")
	}
	return a, err
}

func getApp(ctx context.Context, in *AppInput) (*body[AppDetail], error) {
	a, err := findApp(ctx, in.App)
	if err != nil {
		return nil, err
	}
	of := func(attr string) entity.Query { return ofApp(attr, a.GetID()) }
	p, err := readApps(ctx, of, []*app.App{a})
	if err != nil {
		return nil, err
	}
	out := AppDetail{App: p.app(a), Services: []AppService{}, Containers: []Container{}, Versions: []AppVersion{}, Variables: []string{}}
	for _, pool := range p.pools {
		if pool.Spec.Replicas == 0 && pool.Status.Ready == 0 && !a.Status.Serves(pool.Spec.AppVersion) {
			continue // of an earlier version
		}
		out.Services = append(out.Services, AppService{
			Name: pool.Spec.Service, Version: p.numbers[pool.Spec.AppVersion], Ready: pool.Status.Ready,
			Wanted: pool.Wanted(), Message: pool.Status.Message,
		})
	}
	slices.SortFunc(out.Services, func(a, b AppService) int {
		return cmp.Or(cmp.Compare(b.Version, a.Version), cmp.Compare(a.Name, b.Name))
	})
	sandboxes, err := all[sandbox.Sandbox](ctx, of(sandbox.SandboxAttrApp))
	if err != nil {
		return nil, err
	}
	for _, sb := range sandboxes {
		out.Containers = append(out.Containers, containerOf(sb))
	}
	slices.SortFunc(out.Containers, func(a, b Container) int { return b.CreatedAt.Compare(a.CreatedAt) })
	versions, err := all[app.AppVersion](ctx, of(app.AppVersionAttrApp))
	if err != nil {
		return nil, err
	}
	for _, v := range versions {
		x := AppVersion{ID: string(v.ID), Number: v.Spec.Number, Image: v.Spec.Image, ServedAt: v.Status.ServedAt, CreatedAt: v.CreatedAt}
		if g := v.Spec.Git; g != nil {
			x.Commit, x.Branch = g.Commit, g.Branch
		}
		out.Versions = append(out.Versions, x)
	}
	slices.SortFunc(out.Versions, func(a, b AppVersion) int { return cmp.Compare(b.Number, a.Number) })
	for name := range a.Spec.Env {
		out.Variables = append(out.Variables, name)
	}
	for name := range a.Spec.Secrets {
		out.Variables = append(out.Variables, name)
	}
	slices.Sort(out.Variables)
	return &body[AppDetail]{out}, nil
}
