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
	"miren.dev/runtime/pkg/stack"
)

// buildSecrets returns the values of a plan's build secrets: of the app's secret variables, or else of its others.
// FailedPrecondition for a required one that the app does not have.
func (r *Reconciler) buildSecrets(ctx context.Context, appID id.App, plan *stack.Plan, log *buildlog.Writer) (map[string]string, error) {
	if len(plan.Secrets) == 0 {
		return nil, nil
	}
	a, err := entity.Get[app.App](ctx, r.Store, appID)
	if err != nil {
		return nil, errs.Wrap(err, "read the build secrets")
	}
	values := map[string]string{}
	var missing []string
	for _, s := range plan.Secrets {
		value, ok, err := r.variable(a, s.ID)
		switch {
		case err != nil:
			return nil, errs.Wrap(err, "read the build secret %s", s.ID)
		case ok:
			values[s.ID] = value
		case s.Required:
			missing = append(missing, s.ID)
		default:
			say(log, "warning: the app has no variable for the build secret %s, which a step may do without", s.ID)
		}
	}
	if len(missing) > 0 {
		return nil, errs.New(errs.FailedPrecondition, "the build needs secrets that the app does not have: %s", strings.Join(missing, ", ")).
			WithHint("`r app env set --secret %s` takes the value from the environment here; then `r deploy` again", variableNames(missing[0])[0])
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

// variable returns the value that an app has for a build secret.
func (r *Reconciler) variable(a *app.App, id string) (string, bool, error) {
	for _, name := range variableNames(id) {
		if sealed, ok := a.Spec.Secrets[name]; ok {
			value, err := r.Sealer.Open(sealed)
			return value, true, err
		}
		if value, ok := a.Spec.Env[name]; ok {
			return value, true, nil
		}
	}
	return "", false, nil
}
