package deployment

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/domain/addons"
)

// preview returns the preview that the deployment makes or replaces; nil: it changes what the app's hosts get.
func (r *rollout) preview() *app.PreviewRequest { return r.dep.Spec.Preview }

// previewShare returns the share of that preview, nil if there is none.
func (r *rollout) previewShare() *app.TrafficShare {
	if r.preview() == nil {
		return nil
	}
	return r.app.Status.Preview(r.preview().Name)
}

// hostURL returns the URL of the host of a preview, "" if there is no ingress.
func (r *rollout) hostURL(host string) string {
	if r.HostURL == nil {
		return ""
	}
	return r.HostURL(host)
}

// beginPreview records the preview that is replaced, and checks before the build that the host can be had.
func (r *rollout) beginPreview(ctx context.Context, p *app.PreviewRequest) (*app.Failure, error) {
	r.dep.Status.Previous, r.dep.Status.PreviousShare = "", r.previewShare()
	if share := r.dep.Status.PreviousShare; share != nil {
		r.dep.Status.Previous = share.Version
	}
	if r.Routes == nil {
		return nil, nil
	}
	_, err := r.Routes.PreviewHost(ctx, r.app, p)
	return routesFailure(err)
}

// createPreview makes the version of a preview. It has the addons of the app; those that the app does not have yet would
// change the environment of the active version.
func (r *rollout) createPreview(ctx context.Context, p *app.PreviewRequest, b *app.Build, network *app.Network) (time.Duration, error) {
	spec := r.built(b, network)
	spec.Preview, spec.PreviewSettings = p.Name, b.Status.Preview
	failure, err := r.unfit(ctx, &spec, b.Status.Addons)
	if err != nil {
		return 0, err
	}
	if failure != nil {
		r.step("start", "")
		return 0, r.fail(ctx, *failure)
	}
	return r.createVersion(ctx, spec)
}

// unfit returns why the source of a version cannot be a preview, nil if it can.
func (r *rollout) unfit(ctx context.Context, spec *app.AppVersionSpec, wanted []app.AddonRequest) (*app.Failure, error) {
	missing, err := addons.Missing(ctx, r.Store, r.app, wanted)
	if err != nil {
		return nil, err
	}
	f := &app.Failure{Reason: app.FailureReasonSource}
	has := func(name string) bool {
		return slices.ContainsFunc(spec.Services, func(s app.Service) bool { return s.Name == name })
	}
	if len(missing) > 0 {
		f.Message = fmt.Sprintf("app.toml asks for the addon %s, which the app does not have; a preview makes none", strings.Join(missing, ", "))
		f.Hint = "`r deploy` without --preview makes it; or take it out of app.toml, and set its variables in [preview.env]"
		return f, nil
	}
	if !has(app.DefaultService) {
		f.Message, f.Hint = fmt.Sprintf("the app has no service %s, to which the host of a preview leads", app.DefaultService), "name one so in app.toml, or deploy without --preview"
		return f, nil
	}
	if set := spec.PreviewSettings; set != nil {
		for _, name := range set.Services {
			if !has(name) {
				f.Message = fmt.Sprintf("preview.services of app.toml names %s, which is no service of the app", name)
				f.Hint = "add it under [services], or to the Procfile"
				return f, nil
			}
		}
	}
	return nil, nil
}

// promoted returns the version of a preview as one for the app's hosts, with the app's environment as it is now.
func (r *rollout) promoted(preview *app.AppVersion) app.AppVersionSpec {
	spec := preview.Spec
	spec.Preview, spec.PreviewSettings, spec.CopiedFrom = "", nil, preview.GetID()
	spec.Env, spec.Secrets = r.app.Spec.Env, r.app.Spec.Secrets
	return spec
}

// shiftPreview leads the host of the preview to a version, in memory. Its time begins.
func (r *rollout) shiftPreview(ctx context.Context, p *app.PreviewRequest, ver *app.AppVersion) (*app.Failure, error) {
	host := p.Host
	if r.Routes != nil {
		var err error
		if host, err = r.Routes.ClaimPreview(ctx, r.app, p); err != nil {
			return routesFailure(err)
		}
	}
	end := r.now().Add(p.TTL)
	r.app.Status.SetPreview(app.TrafficShare{Version: ver.GetID(), Weight: 100, Host: host, Preview: p.Name, ExpiresAt: &end})
	return nil, nil
}

// restorePreview gives the host back to the version that the preview had before, with its time, in memory. If there was
// none, the preview ends.
func (r *rollout) restorePreview(p *app.PreviewRequest) {
	if before := r.dep.Status.PreviousShare; before != nil {
		r.app.Status.SetPreview(*before)
	} else {
		r.app.Status.EndPreview(p.Name)
	}
}
