// Package preview has `r preview`: the previews of apps, which `r deploy --preview` makes, and those of ports of sandboxes,
// which `r sandbox preview` makes.
package preview

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// New makes the commands.
func New(e *command.Env) *cobra.Command {
	l := &lister{Env: e}
	return command.Group("preview", "Previews of apps, and ports of sandboxes that are reachable by URLs",
		command.List(e, "List the previews", []string{app.KindApp, sandbox.KindPreview}, l.load, l.print), newURL(e), newDelete(e))
}

// ports returns the service of previews of ports.
func ports(ctx context.Context, e *command.Env) (sandbox.PreviewsClient, error) {
	c, err := e.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return sandbox.NewPreviewsClient(c), nil
}

type lister struct{ *command.Env }

// ofApp is a preview of an app.
type ofApp struct {
	Kind      string     `json:"kind"` // app_preview
	Name      string     `json:"name"`
	App       string     `json:"app"`
	Version   string     `json:"version"` // "v3"
	Host      string     `json:"host"`
	URL       string     `json:"url,omitempty"`
	ExpiresAt *time.Time `json:"expires_at,omitempty"`

	made time.Time
}

// load returns the previews of apps, of type ofApp, and then those of ports, of type sandbox.Preview.
func (l *lister) load(ctx context.Context) ([]any, error) {
	all, _, err := command.All[app.App](ctx, l.Env, entity.Query{})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(all, func(a, b *app.App) int { return cmp.Compare(a.Name, b.Name) })
	var out []any
	for _, a := range all {
		shares := a.Status.Previews()
		slices.SortFunc(shares, func(x, y app.TrafficShare) int { return cmp.Compare(x.Preview, y.Preview) })
		for _, s := range shares {
			p, err := l.ofApp(ctx, a, &s)
			if err != nil {
				return nil, err
			}
			out = append(out, p)
		}
	}
	list, _, err := command.All[sandbox.Preview](ctx, l.Env, entity.Query{})
	slices.SortFunc(list, func(a, b *sandbox.Preview) int {
		return cmp.Or(cmp.Compare(a.Spec.Sandbox, b.Spec.Sandbox), cmp.Compare(a.Spec.Port, b.Spec.Port))
	})
	for _, p := range list {
		out = append(out, p)
	}
	return out, err
}

func (l *lister) ofApp(ctx context.Context, a *app.App, s *app.TrafficShare) (*ofApp, error) {
	p := &ofApp{Kind: "app_preview", Name: s.Preview, App: a.Name, Host: s.Host, ExpiresAt: s.ExpiresAt}
	store, err := l.Store(ctx)
	if err != nil {
		return nil, err
	}
	v, err := entity.Get[app.AppVersion](ctx, store, s.Version)
	if err != nil && !errs.Is(err, errs.NotFound) {
		return nil, err
	}
	if err == nil {
		p.Version, p.made = "v"+strconv.FormatInt(v.Spec.Number, 10), v.CreatedAt
	}
	p.URL, err = l.url(ctx, a, s.Version)
	return p, err
}

// url returns the URL that the deployment of a version recorded, "" if that is not there any more.
func (l *lister) url(ctx context.Context, a *app.App, version id.AppVersion) (string, error) {
	deps, _, err := command.All[app.Deployment](ctx, l.Env, entity.Query{Index: []entity.IndexMatch{{
		Attr: app.DeploymentAttrApp, Op: entity.IndexEq, Value: schema.EncodeIndexString(string(a.ID)),
	}}})
	for _, d := range deps {
		if d.Spec.Preview != nil && d.Status.Version == version {
			return d.Status.URL, err
		}
	}
	return "", err
}

func (l *lister) print(_ context.Context, list []any) error {
	if len(list) == 0 && l.Terminal {
		l.Notef("there are no previews: `r deploy --preview NAME` makes one of an app, `r sandbox preview ID PORT` one of a port\n")
		return nil
	}
	var rows [][]string
	for _, o := range list {
		switch p := o.(type) {
		case *ofApp:
			rows = append(rows, []string{p.Name, p.App + " " + p.Version, p.Host, "public", l.end(p.ExpiresAt, "never"), schema.CellAge(p.made, time.Now())})
		case *sandbox.Preview:
			access, port := "token", strconv.FormatInt(p.Spec.Port, 10)
			if p.Spec.Public {
				access = "public"
			}
			if p.Spec.Port == 0 {
				port = "all"
			}
			rows = append(rows, []string{p.Name, string(p.Spec.Sandbox), port, access, l.end(p.Spec.ExpiresAt, "with the sandbox"), schema.CellAge(p.CreatedAt, time.Now())})
		}
	}
	l.Table([]string{"NAME", "OF", "AT", "ACCESS", "ENDS", "AGE"}, rows)
	return nil
}

// end returns when a preview ends.
func (l *lister) end(at *time.Time, never string) string {
	switch {
	case at == nil:
		return never
	case at.Before(time.Now()):
		return l.Paint(console.Yellow, "ended")
	}
	return at.Format(time.DateTime)
}
