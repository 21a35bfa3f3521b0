package apps

import (
	"context"
	"maps"
	"regexp"
	"strconv"
	"strings"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// Variables that the system sets in every sandbox of an app. An app cannot set
// them itself.
const (
	envPort    = "PORT" // only for a service that serves on a port
	envApp     = "RUNTIME_APP"
	envPreview = "RUNTIME_PREVIEW"
	envService = "RUNTIME_SERVICE"
	envVersion = "RUNTIME_VERSION"
)

var reservedEnv = map[string]bool{envPort: true, envApp: true, envService: true, envVersion: true, envPreview: true}

var envName = regexp.MustCompile(sandbox.EnvNamePattern)

// EnvChange is a change of an app's environment. A name is either secret or not:
// setting it one way removes it the other way.
type EnvChange struct {
	Set       map[string]string
	SetSecret map[string]string // sealed before they are stored
	Unset     []string
	Deploy    bool // roll out the change, if the app serves a version
}

// SetEnv changes the environment of an app. With Deploy, if the app serves a
// version, it rolls out the change in the same transaction; otherwise the
// deployment is nil and the next deployment applies the change. changed is
// false, and nothing is written, if the app, and with Deploy its active
// version, have that environment already. Errors: InvalidArgument for a name or
// value that cannot be set, ResourceExhausted for more than sandbox.MaxEnv
// variables, and the errors of Deploy.
func (s *Service) SetEnv(ctx context.Context, project, name string, c EnvChange, req DeployRequest) (d *app.Deployment, changed bool, err error) {
	if err := checkEnv(c.Set, false); err != nil {
		return nil, false, err
	}
	if err := checkEnv(c.SetSecret, true); err != nil {
		return nil, false, err
	}
	sealed := map[string]schema.Secret{}
	for k, v := range c.SetSecret {
		sec, err := s.Sealer.Seal(v)
		if err != nil {
			return nil, false, err
		}
		sealed[k] = sec
	}
	change := func(a *app.App) error { return c.apply(a, sealed) }
	a, err := s.Find(ctx, project, name)
	if err != nil {
		return nil, false, err
	}
	deploy := c.Deploy && a.Status.Active() != ""
	same := s.has(a.Spec.Env, a.Spec.Secrets, &c)
	if same && deploy {
		ver, err := ActiveVersion(ctx, s.Store, a)
		if err != nil {
			return nil, false, err
		}
		same = s.has(ver.Spec.Env, ver.Spec.Secrets, &c)
	}
	switch {
	case same:
		return nil, false, nil
	case !deploy:
		_, err := entity.ModifySpec(ctx, s.Store, a.GetID(), change)
		return nil, true, err
	}
	req.Kind, req.Target, req.Change = app.RolloutKindConfig, a.Status.Active(), change
	d, err = s.Deploy(ctx, a, req)
	return d, true, err
}

// has reports whether an environment is the one that c leads to. A secret that
// cannot be opened counts as different.
func (s *Service) has(env map[string]string, secrets map[string]schema.Secret, c *EnvChange) bool {
	for _, k := range c.Unset {
		_, plain := env[k]
		_, secret := secrets[k]
		if plain || secret {
			return false
		}
	}
	for k, v := range c.Set {
		if old, ok := env[k]; !ok || old != v {
			return false
		}
	}
	for k, v := range c.SetSecret {
		sec, ok := secrets[k]
		if !ok {
			return false
		}
		if old, err := s.Sealer.Open(sec); err != nil || old != v {
			return false
		}
	}
	return true
}

// checkEnv returns InvalidArgument for a variable that an app cannot have. What is no
// valid name of a secret may be a part of its value, and is not in the message.
func checkEnv(m map[string]string, secret bool) error {
	for k, v := range m {
		switch {
		case !envName.MatchString(k) || len(k) > sandbox.MaxEnvName:
			named := strconv.Quote(k)
			if secret {
				named = "what was given for a secret"
			}
			return errs.New(errs.InvalidArgument, "%s is not a name of an environment variable", named).
				WithHint("letters, digits and _, not a digit first, at most %d bytes", sandbox.MaxEnvName)
		case reservedEnv[k]:
			return errs.New(errs.InvalidArgument, "%s is set by the system", k).WithHint("a service's port is set in app.toml")
		case len(v) > sandbox.MaxEnvValue || strings.ContainsRune(v, 0):
			return errs.New(errs.InvalidArgument, "the value of %s is longer than %d bytes or holds a NUL", k, sandbox.MaxEnvValue)
		}
	}
	return nil
}

// apply changes the environment of a.
func (c *EnvChange) apply(a *app.App, sealed map[string]schema.Secret) error {
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
	if len(env)+len(secrets) > sandbox.MaxEnv {
		return errs.New(errs.ResourceExhausted, "an app has at most %d environment variables", sandbox.MaxEnv)
	}
	a.Spec.Env, a.Spec.Secrets = env, secrets
	return nil
}
