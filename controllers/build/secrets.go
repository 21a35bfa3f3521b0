package build

import (
	"context"
	"maps"
	"regexp"
	"slices"
	"strings"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/buildlog"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/pkg/stack"
)

// appSecrets returns the values of build secrets: of the app's secret variables, or else of its others.
func (r *Reconciler) appSecrets(ctx context.Context, appID id.App, asked []stack.Secret, log *buildlog.Writer) (map[string]string, error) {
	if len(asked) == 0 {
		return nil, nil
	}
	a, err := entity.Get[app.App](ctx, r.Store, appID)
	if err != nil {
		return nil, errs.Wrap(err, "read the build secrets")
	}
	return r.secrets(asked, a.Spec.Secrets, a.Spec.Env, "`r app env set --secret %s` takes the value from the environment here; then `r deploy` again", log)
}

// templateSecrets returns the values of the build secrets of a template, and warns of those that no step reads.
func (r *Reconciler) templateSecrets(b *app.Build, asked []stack.Secret, log *buildlog.Writer) (map[string]string, error) {
	read := map[string]bool{}
	for _, s := range asked {
		for _, name := range variableNames(s.ID) {
			read[name] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(b.Spec.Secrets)) {
		if !read[name] {
			say(log, "warning: no step mounts the build secret %s", name)
		}
	}
	return r.secrets(asked, b.Spec.Secrets, nil, "build it with --secret %s", log)
}

// secrets returns the values of the build secrets that steps ask for. FailedPrecondition, with a hint of the variable,
// for a required one without a value.
func (r *Reconciler) secrets(asked []stack.Secret, sealed map[string]schema.Secret, plain map[string]string, hint string, log *buildlog.Writer) (map[string]string, error) {
	values := map[string]string{}
	var missing []string
	for _, s := range asked {
		value, ok, err := r.variable(s.ID, sealed, plain)
		switch {
		case err != nil:
			return nil, errs.Wrap(err, "read the build secret %s", s.ID)
		case ok:
			values[s.ID] = value
		case s.Required:
			missing = append(missing, s.ID)
		default:
			say(log, "warning: there is no variable for the build secret %s, which a step may do without", s.ID)
		}
	}
	if len(missing) > 0 {
		return nil, errs.New(errs.FailedPrecondition, "the build needs secrets that have no value: %s", strings.Join(missing, ", ")).
			WithHint(hint, variableNames(missing[0])[0])
	}
	if len(values) > 0 {
		say(log, "  build secrets: %s", strings.Join(slices.Sorted(maps.Keys(values)), ", "))
	}
	return values, nil
}

var notInName = regexp.MustCompile(`[^A-Za-z0-9_]`)

// variableNames are the variables that may have the value of a build secret, the likeliest first. Ids of Dockerfiles are
// often written as npm-token, which is no name of a variable.
func variableNames(id string) []string {
	upper := strings.ToUpper(notInName.ReplaceAllString(id, "_"))
	if notInName.MatchString(id) || id == upper {
		return []string{upper}
	}
	return []string{id, upper}
}

// variable returns the value of the variable for a build secret, of the secret ones first.
func (r *Reconciler) variable(id string, sealed map[string]schema.Secret, plain map[string]string) (string, bool, error) {
	for _, name := range variableNames(id) {
		if s, ok := sealed[name]; ok {
			value, err := r.Sealer.Open(s)
			return value, true, err
		}
		if value, ok := plain[name]; ok {
			return value, true, nil
		}
	}
	return "", false, nil
}
