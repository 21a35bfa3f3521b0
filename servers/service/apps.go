package service

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// Versions lists the versions of an app, newest first.
func (s *Service) Versions(ctx context.Context, a *app.App) ([]*app.AppVersion, error) {
	list, _, err := entity.List[app.AppVersion](ctx, s.Store, entity.Query{Index: []entity.IndexMatch{{
		Attr: app.AppVersionAttrApp, Op: entity.IndexEq, Value: schema.EncodeIndexString(string(a.ID)),
	}}})
	slices.SortFunc(list, func(a, b *app.AppVersion) int { return cmp.Compare(b.Spec.Number, a.Spec.Number) })
	return list, err
}

// Rollback rolls out an earlier version again: the one named by to ("v3", "3",
// or its id), or the one that served before the active one.
func (s *Service) Rollback(ctx context.Context, project, name, to string, req DeployRequest) (*app.Deployment, error) {
	a, err := s.App(ctx, project, name)
	if err != nil {
		return nil, err
	}
	target, err := s.rollbackTarget(ctx, a, to)
	if err != nil {
		return nil, err
	}
	req.Kind, req.Target = app.RolloutKindRollback, target.GetID()
	if req.Message == "" {
		req.Message = fmt.Sprintf("rollback to v%d", target.Spec.Number)
	}
	return s.Deploy(ctx, a, req)
}

func (s *Service) rollbackTarget(ctx context.Context, a *app.App, to string) (*app.AppVersion, error) {
	versions, err := s.Versions(ctx, a)
	if err != nil {
		return nil, err
	}
	history := fmt.Sprintf("`r app history %s` lists its versions", a.Name)
	if to != "" {
		n, nerr := strconv.ParseInt(strings.TrimPrefix(to, "v"), 10, 64)
		for _, v := range versions {
			if string(v.ID) == to || nerr == nil && v.Spec.Number == n {
				return v, nil
			}
		}
		return nil, errs.New(errs.NotFound, "app %s has no version %s", a.Name, to).With("kind", "app_version").WithHint("%s", history)
	}
	k := slices.IndexFunc(versions, func(v *app.AppVersion) bool { return v.GetID() == a.Status.ActiveVersion })
	if k < 0 {
		return nil, errs.New(errs.FailedPrecondition, "app %s serves no version yet", a.Name).WithHint("deploy it first: `r deploy`")
	}
	for _, v := range versions[k+1:] { // newest first
		if v.Status.ServedAt != nil && !same(v, versions[k]) {
			return v, nil
		}
	}
	return nil, errs.New(errs.FailedPrecondition, "app %s has no earlier version that served and differs from the active one", a.Name).WithHint("%s", history)
}

// same reports whether two versions run the same, as after a restart.
func same(a, b *app.AppVersion) bool {
	x, y := a.Spec, b.Spec
	secret := func(a, b schema.Secret) bool { return reflect.DeepEqual(a, b) }
	return x.Image == y.Image && maps.Equal(x.SourceEnv, y.SourceEnv) && maps.Equal(x.Env, y.Env) &&
		maps.EqualFunc(x.Secrets, y.Secrets, secret) && reflect.DeepEqual(x.Services, y.Services)
}

// Restart rolls out the active version in new sandboxes.
func (s *Service) Restart(ctx context.Context, project, name string, req DeployRequest) (*app.Deployment, error) {
	a, err := s.App(ctx, project, name)
	if err != nil {
		return nil, err
	}
	if a.Status.ActiveVersion == "" {
		return nil, errs.New(errs.FailedPrecondition, "app %s serves no version yet", name).WithHint("deploy it first: `r app deploy`")
	}
	req.Kind, req.Target = app.RolloutKindRestart, a.Status.ActiveVersion
	return s.Deploy(ctx, a, req)
}

// Cancel asks the deployment under way to stop. NotFound if there is none,
// FailedPrecondition if its version takes the traffic already.
func (s *Service) Cancel(ctx context.Context, project, name string) (*app.Deployment, error) {
	a, err := s.App(ctx, project, name)
	if err != nil {
		return nil, err
	}
	none := errs.New(errs.NotFound, "no deployment of %s is under way", name).WithHint("`r app history %s` lists those that ended", name)
	if a.Status.ActiveDeployment == "" {
		return nil, none
	}
	d, err := entity.ModifySpec(ctx, s.Store, a.Status.ActiveDeployment, func(d *app.Deployment) error {
		switch {
		case d.Status.Phase.Ended():
			return none
		case !d.Status.Phase.Cancelable():
			return errs.New(errs.FailedPrecondition, "the new version of %s takes the traffic already", name).
				WithHint("`r app rollback %s` brings the version before back", name)
		}
		d.Spec.Cancel = true
		return nil
	})
	if errs.Is(err, errs.NotFound) {
		return nil, none
	}
	return d, err
}

// EnvChange is a change of an app's environment.
type EnvChange struct {
	Set       map[string]string
	SetSecret map[string]string // sealed before they are stored
	Unset     []string
	Deploy    bool // roll it out, if a version serves
}

const (
	maxEnvName  = 256
	maxEnvValue = 64 << 10
	maxEnv      = 500
)

var envName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// reserved names are set by the system.
var reserved = map[string]bool{"PORT": true, "RUNTIME_APP": true, "RUNTIME_SERVICE": true, "RUNTIME_VERSION": true}

// SetEnv changes the environment and, if asked and a version serves, rolls the
// change out; the deployment is nil otherwise.
func (s *Service) SetEnv(ctx context.Context, project, name string, c EnvChange, req DeployRequest) (*app.Deployment, error) {
	for _, m := range []map[string]string{c.Set, c.SetSecret} {
		for k, v := range m {
			switch {
			case !envName.MatchString(k) || len(k) > maxEnvName:
				return nil, errs.New(errs.InvalidArgument, "%q is not a name of an environment variable", k).
					WithHint("letters, digits and _, not a digit first, at most %d bytes", maxEnvName)
			case reserved[k]:
				return nil, errs.New(errs.InvalidArgument, "%s is set by the system", k).WithHint("a service's port is set in app.toml")
			case len(v) > maxEnvValue || strings.ContainsRune(v, 0):
				return nil, errs.New(errs.InvalidArgument, "the value of %s is longer than %d bytes or holds a NUL", k, maxEnvValue)
			}
		}
	}
	sealed := map[string]schema.Secret{}
	for k, v := range c.SetSecret {
		sec, err := s.Sealer.Seal(v)
		if err != nil {
			return nil, err
		}
		sealed[k] = sec
	}
	change := func(a *app.App) error {
		env, secrets := maps.Clone(a.Spec.Env), maps.Clone(a.Spec.Secrets)
		if env == nil {
			env = map[string]string{}
		}
		if secrets == nil {
			secrets = map[string]schema.Secret{}
		}
		for _, k := range c.Unset {
			delete(env, k)
			delete(secrets, k)
		}
		for k, v := range c.Set {
			delete(secrets, k)
			env[k] = v
		}
		for k, v := range sealed {
			delete(env, k)
			secrets[k] = v
		}
		if len(env)+len(secrets) > maxEnv {
			return errs.New(errs.ResourceExhausted, "an app has at most %d environment variables", maxEnv)
		}
		a.Spec.Env, a.Spec.Secrets = env, secrets
		return nil
	}
	a, err := s.App(ctx, project, name)
	if err != nil {
		return nil, err
	}
	if !c.Deploy || a.Status.ActiveVersion == "" {
		return nil, s.retry(ctx, func() error {
			_, err := entity.ModifySpec(ctx, s.Store, a.GetID(), change)
			return err
		})
	}
	req.Kind, req.Target, req.Change = app.RolloutKindConfig, a.Status.ActiveVersion, change
	return s.Deploy(ctx, a, req)
}
