package addons

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"miren.dev/runtime/api/addon"
	"miren.dev/runtime/api/app"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// NameFor returns the name of the addon that an app.toml names.
func NameFor(appName, name string) string {
	return schema.ChildName(appName, name, addon.MaxAddonName)
}

// Ensure has the addons that an app asks for exist and attached, and says which of their
// variables the app's environment lacks still; empty: none. An addon that exists stays as
// it is. Errors: InvalidArgument for one that is of another kind, FailedPrecondition for
// one that cannot be started or whose variables the app has already.
func Ensure(ctx context.Context, s entity.Store, a *app.App, wanted []app.AddonRequest) (waits string, err error) {
	var missing []string
	for _, w := range wanted {
		wait, err := ensure(ctx, s, a, w)
		if err != nil {
			return "", err
		}
		if wait != "" {
			missing = append(missing, wait)
		}
	}
	return strings.Join(missing, "; "), nil
}

func ensure(ctx context.Context, s entity.Store, a *app.App, w app.AddonRequest) (waits string, err error) {
	engine, err := addon.ParseEngine(w.Kind)
	if err != nil {
		return "", err
	}
	name := NameFor(a.Name, w.Name)
	x, err := entity.ByName[addon.Addon](ctx, s, a.Project, name)
	if errs.Is(err, errs.NotFound) {
		return fmt.Sprintf("addon %s is being made", name), makeFor(ctx, s, a, w, name, engine)
	}
	if err != nil {
		return "", err
	}
	switch {
	case x.Spec.Engine != engine:
		return "", errs.New(errs.InvalidArgument, "addon %s is %s, but app.toml asks for %s", name, x.Spec.Engine, engine).
			WithHint("name another in [addons], or delete that one: `r addon delete %s`", name)
	case x.Spec.Deleted:
		return fmt.Sprintf("addon %s is being deleted", name), nil
	}
	all, err := AttachmentsOf(ctx, s, a.GetID())
	if err != nil {
		return "", err
	}
	i := slices.IndexFunc(all, func(t *addon.AddonAttachment) bool { return t.Spec.Addon == x.GetID() })
	switch {
	case i < 0:
		if err := free(a, engine, w.Prefix); err != nil {
			return "", errs.New(errs.InvalidArgument, "%w", err).WithHint("%s", errs.HintOf(err))
		}
		return fmt.Sprintf("addon %s is being attached", name), entity.AsConflict(entity.Create(ctx, s, NewAttachment(x, a, w.Prefix)))
	case all[i].Spec.Detach:
		return fmt.Sprintf("addon %s is being detached", name), nil
	case all[i].Status.Set == x.Spec.Credential:
		return "", nil
	case x.Status.Phase == addon.AddonPhaseFailed:
		return "", errs.New(errs.FailedPrecondition, "addon %s cannot be started: %s", name, x.Status.Message).WithHint("`r addon show %s` says more", name)
	}
	return strings.TrimSuffix(fmt.Sprintf("waiting for addon %s: %s", name, x.Status.Message), ": "), nil
}

// Current returns the secrets for a new version of an app from those of an earlier one. It leaves out the variables that
// addons gave the earlier version, since addons refuse the credentials of that time, and adds those that they give the
// app now.
func Current(ctx context.Context, r entity.Reader, a *app.App, earlier *app.AppVersionSpec) (map[string]schema.Secret, error) {
	given, err := Given(ctx, r, a)
	if err != nil {
		return nil, err
	}
	now := maps.Clone(earlier.Secrets)
	for _, name := range earlier.AddonVariables {
		delete(now, name)
	}
	if now == nil && len(given) > 0 {
		now = map[string]schema.Secret{}
	}
	for _, name := range given {
		now[name] = a.Spec.Secrets[name]
	}
	return now, nil
}

// Given returns the names of an app's secrets that its addons gave it, sorted.
func Given(ctx context.Context, r entity.Reader, a *app.App) ([]string, error) {
	all, err := AttachmentsOf(ctx, r, a.GetID())
	if err != nil {
		return nil, err
	}
	var names []string
	for _, t := range all {
		x, err := entity.Get[addon.Addon](ctx, r, t.Spec.Addon)
		if err != nil {
			return nil, err
		}
		for name := range Variables(x.Spec.Engine, "", "", 0, "", t.Spec.Prefix) {
			if _, ok := a.Spec.Secrets[name]; ok {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return names, nil
}

// makeFor makes an addon, its app and the attachment together or not at all.
func makeFor(ctx context.Context, s entity.Store, a *app.App, w app.AddonRequest, name string, engine addon.Engine) error {
	if err := free(a, engine, w.Prefix); err != nil {
		return errs.New(errs.InvalidArgument, "%w", err).WithHint("%s", errs.HintOf(err))
	}
	x := addon.NewAddon()
	x.Project, x.Name, x.Spec.Engine, x.Spec.Version = a.Project, name, engine, w.Version
	if w.SizeBytes != nil {
		x.Spec.SizeBytes = *w.SizeBytes
	}
	if w.MemoryBytes != nil {
		x.Spec.MemoryBytes = *w.MemoryBytes
	}
	ops, err := create(x)
	if err != nil {
		return err
	}
	op, err := entity.CreateOp(NewAttachment(x, a, w.Prefix))
	if err != nil {
		return err
	}
	_, err = s.Txn(ctx, entity.TxnRequest{Ops: append(ops, op)})
	if errs.Is(err, errs.AlreadyExists) {
		if _, missing := entity.ByName[addon.Addon](ctx, s, a.Project, name); missing == nil {
			return errs.New(errs.Conflict, "%w", err) // it was made meanwhile
		}
		return errs.New(errs.InvalidArgument, "addon %s cannot be made: there is an app of that name", name).WithHint("name the addon otherwise in [addons]")
	}
	return err
}

// Missing returns the names of those addons that an app asks for which are not attached to it.
func Missing(ctx context.Context, r entity.Reader, a *app.App, wanted []app.AddonRequest) ([]string, error) {
	if len(wanted) == 0 {
		return nil, nil
	}
	all, err := AttachmentsOf(ctx, r, a.GetID())
	if err != nil {
		return nil, err
	}
	var missing []string
	for _, w := range wanted {
		name := NameFor(a.Name, w.Name)
		x, err := entity.ByName[addon.Addon](ctx, r, a.Project, name)
		if err != nil && !errs.Is(err, errs.NotFound) {
			return nil, err
		}
		if err != nil || !slices.ContainsFunc(all, func(t *addon.AddonAttachment) bool {
			return t.Spec.Addon == x.GetID() && !t.Spec.Detach && t.Status.Set == x.Spec.Credential
		}) {
			missing = append(missing, name)
		}
	}
	return missing, nil
}
