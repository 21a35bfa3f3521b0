package rest

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/opt"
)

// AppPreview is a version of an app with a host of its own, which gets none of the requests to the app's hosts.
type AppPreview struct {
	Name      string     `json:"name" doc:"Name." example:"pr-12"`
	App       string     `json:"app" doc:"Name of the app."`
	Version   int64      `json:"version,omitempty" doc:"Number of its version."`
	Host      string     `json:"host" doc:"Its host." example:"pr-12--shop.localhost"`
	URL       string     `json:"url,omitempty" doc:"Its URL; absent: its deployment is not kept any more."`
	ExpiresAt *time.Time `json:"expires_at,omitempty" doc:"Time at which it ends."`
}

// AppPreviewList is the previews of an app.
type AppPreviewList struct {
	Previews []AppPreview `json:"previews" doc:"Previews by name."`
}

// AppPreviewInput names a preview of an app.
type AppPreviewInput struct {
	AppInput
	Preview string `path:"preview" maxLength:"40" pattern:"^[a-z]([a-z0-9-]*[a-z0-9])?$" doc:"Name of the preview." example:"pr-12"`
}

// AppPreviewSource is what a preview is made of: an image, or files with or without a Dockerfile.
type AppPreviewSource struct {
	Image      string      `json:"image,omitempty" maxLength:"512" pattern:"^[^\\s\\\\$#-][^\\s\\\\$#]*$" doc:"Image that is built already; the server must reach its registry." example:"registry.example.com/shop:1.2"`
	Dockerfile string      `json:"dockerfile,omitempty" maxLength:"262144" doc:"Text of a Dockerfile; absent: that of the files, or how to build them is detected."`
	Files      []InputFile `json:"files,omitempty" maxItems:"1000" doc:"The source, app.toml too, with relative paths; at most 8 MiB together. With an image only app.toml counts."`
	Stack      string      `json:"stack,omitempty" maxLength:"20" doc:"Stack to build it with; absent: from app.toml, or detected." example:"static"`
	NoCache    bool        `json:"no_cache,omitempty" doc:"Build it without the cache."`
	TTLSeconds *int64      `json:"ttl_seconds,omitempty" minimum:"60" maximum:"2592000" doc:"Time after which it ends; absent: 72 hours." example:"86400"`
	Host       string      `json:"host,omitempty" maxLength:"253" doc:"Its host; absent: NAME--APP below the ingress's local domain."`
	Message    string      `json:"message,omitempty" maxLength:"1024" doc:"Reason for the change, shown in the history."`
}

type deployPreviewInput struct {
	AppPreviewInput
	Body AppPreviewSource
}

type promotePreviewInput struct {
	AppPreviewInput
	Body struct {
		Message string `json:"message,omitempty" maxLength:"1024" doc:"Reason for the change, shown in the history."`
	}
}

// begunDeployment is a deployment that has begun.
type begunDeployment struct {
	Location string `header:"Location"`
	Body     Deployment
}

func registerAppPreviews(a huma.API) {
	const tag = "apps"
	register(a, op(http.MethodGet, "/apps/{app}/previews", "list-app-previews", tag, "List the previews of an app"), listAppPreviews)
	register(a, op(http.MethodPut, "/apps/{app}/previews/{preview}", "deploy-app-preview", tag,
		"Begin to deploy a source as a preview of an app, which replaces the one of that name. The app is made if it does not exist", status(http.StatusAccepted)), deployAppPreview)
	register(a, op(http.MethodDelete, "/apps/{app}/previews/{preview}", "delete-app-preview", tag, "End a preview of an app", status(http.StatusNoContent)), deleteAppPreview)
	register(a, op(http.MethodPost, "/apps/{app}/previews/{preview}/promote", "promote-app-preview", tag,
		"Begin to make the version of a preview the active one of its app, without a build", status(http.StatusAccepted)), promoteAppPreview)
}

func listAppPreviews(ctx context.Context, in *AppInput) (*body[AppPreviewList], error) {
	a, err := findApp(ctx, in.App)
	if err != nil {
		return nil, err
	}
	p, err := readApps(ctx, func(attr string) entity.Query { return ofApp(attr, a.GetID()) }, []*app.App{a})
	if err != nil {
		return nil, err
	}
	out := AppPreviewList{Previews: []AppPreview{}}
	for _, s := range a.Status.Previews() {
		x := AppPreview{Name: s.Preview, App: a.Name, Version: p.numbers[s.Version], Host: s.Host, ExpiresAt: s.ExpiresAt}
		for _, d := range p.deployments {
			if d.Spec.Preview != nil && d.Status.Version == s.Version {
				x.URL = d.Status.URL
			}
		}
		out.Previews = append(out.Previews, x)
	}
	slices.SortFunc(out.Previews, func(x, y AppPreview) int { return strings.Compare(x.Name, y.Name) })
	return &body[AppPreviewList]{out}, nil
}

func deployAppPreview(ctx context.Context, in *deployPreviewInput) (*begunDeployment, error) {
	b := &in.Body
	preview := &app.PreviewRequest{Name: in.Preview, Host: b.Host, TTL: app.DefaultPreviewTTL}
	if b.TTLSeconds != nil {
		preview.TTL = *seconds(b.TTLSeconds)
	}
	if err := preview.Validate(); err != nil {
		return nil, err // before its files are uploaded
	}
	dockerfile := b.Dockerfile
	switch {
	case b.Image != "" && (dockerfile != "" || b.Stack != ""):
		return nil, errs.New(errs.InvalidArgument, "an image is deployed as it is: dockerfile and stack are for files")
	case b.Image != "":
		dockerfile = "FROM " + b.Image + "\n"
	case dockerfile == "" && len(b.Files) == 0:
		return nil, errs.New(errs.InvalidArgument, "there is nothing to deploy").WithHint("give files, a dockerfile or an image")
	}
	src, err := uploadFiles(ctx, dockerfile, b.Files)
	if err != nil {
		return nil, err
	}
	return begun(ctx)(app.NewDeploysClient(callerFrom(ctx).Client).Deploy(ctx, &app.DeployRequest{
		Project: callerFrom(ctx).Project(), App: in.App, Create: true, Source: src, Message: b.Message, NoCache: opt.Of(b.NoCache), Stack: b.Stack, Preview: preview,
	}))
}

func deleteAppPreview(ctx context.Context, in *AppPreviewInput) (*struct{}, error) {
	return nil, app.NewAppsClient(callerFrom(ctx).Client).DeletePreview(ctx, &app.AppPreviewRequest{Project: callerFrom(ctx).Project(), App: in.App, Preview: in.Preview})
}

func promoteAppPreview(ctx context.Context, in *promotePreviewInput) (*begunDeployment, error) {
	return begun(ctx)(app.NewAppsClient(callerFrom(ctx).Client).Promote(ctx, &app.PromoteRequest{
		Project: callerFrom(ctx).Project(), App: in.App, Preview: in.Preview, Message: in.Body.Message,
	}))
}

// begun answers with the deployment that a call has begun.
func begun(ctx context.Context) func(*app.DeploymentResponse, error) (*begunDeployment, error) {
	return func(resp *app.DeploymentResponse, err error) (*begunDeployment, error) {
		if err != nil {
			return nil, err
		}
		if resp.Deployment == nil {
			return nil, errs.New(errs.Internal, "the server accepted the deployment without returning it")
		}
		d, err := entity.Decode[app.Deployment](resp.Deployment)
		if err != nil {
			return nil, err
		}
		out, err := describeDeployment(ctx, d)
		return &begunDeployment{Prefix + "/deployments/" + out.ID, out}, err
	}
}
