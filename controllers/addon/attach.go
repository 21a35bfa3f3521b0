package addon

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"miren.dev/runtime/api/addon"
	"miren.dev/runtime/api/app"
	"miren.dev/runtime/domain/addons"
	"miren.dev/runtime/domain/apps"
	"miren.dev/runtime/domain/sandboxes"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
)

// attach gives the attached apps the newest credential, and takes the variables from
// those that are detached. It is done when every sandbox of the apps has that credential.
func (w *work) attach(ctx context.Context) (outcome, error) {
	all, err := addons.Attachments(ctx, w.Store, w.addon.GetID())
	if err != nil {
		return outcome{}, err
	}
	finished := true
	for _, t := range all {
		to, err := entity.Get[app.App](ctx, w.Store, t.Spec.App)
		if errs.Is(err, errs.NotFound) {
			finished = false // the attachment goes with the app
			continue
		}
		if err != nil {
			return outcome{}, err
		}
		x := &attached{work: w, t: t, to: to}
		ok, err := x.reconcile(ctx)
		if err != nil {
			return outcome{}, err
		}
		finished = finished && ok
	}
	switch {
	case finished:
		return done, nil
	case w.addon.Spec.Deleted:
		return w.wait(ctx, addon.AddonPhaseDeleting, "the apps that used it lose its variables")
	case len(w.addon.Status.Credentials) > 1:
		return w.wait(ctx, addon.AddonPhaseRotating, fmt.Sprintf("the apps get the new credentials; `r addon show %s` shows how far", w.addon.Name))
	}
	return waits, w.report(ctx, addon.AddonPhaseReady, "")
}

// attached is one attachment being reconciled.
type attached struct {
	*work
	t  *addon.AddonAttachment
	to *app.App
}

// reconcile reports whether the attachment is as it is to be.
func (x *attached) reconcile(ctx context.Context) (bool, error) {
	project, err := x.project(ctx)
	if err != nil {
		return false, err
	}
	if x.t.Spec.Detach || x.addon.Spec.Deleted {
		return x.detach(ctx, project)
	}
	c := x.addon.Status.Credentials[slices.IndexFunc(x.addon.Status.Credentials, func(c addon.Credential) bool { return c.Number == x.addon.Spec.Credential })]
	password, err := x.Sealer.Open(c.Password)
	if err != nil {
		return false, err
	}
	vars := addons.Variables(x.addon.Spec.Engine, x.addon.Name, x.addon.Status.Endpoint, c.Number, password, x.t.Spec.Prefix)
	if _, _, err := x.Apps.SetEnv(ctx, project, x.to.Name, apps.EnvChange{SetSecret: vars}, apps.DeployRequest{}); err != nil {
		return false, err
	}
	if x.t.Status.Set != c.Number {
		x.t.Status.Set = c.Number
		if err := entity.UpdateStatus(ctx, x.Store, x.t); err != nil {
			return false, err
		}
	}
	// The environment may have changed just now.
	if x.to, err = entity.Get[app.App](ctx, x.Store, x.t.Spec.App); err != nil {
		return false, err
	}
	waits, err := x.rollOut(ctx, project, vars)
	if err != nil {
		return false, err
	}
	if waits != x.t.Status.Message || waits == "" && x.t.Status.Running != c.Number {
		x.t.Status.Message = waits
		if waits == "" {
			x.t.Status.Running = c.Number
		}
		if err := entity.UpdateStatus(ctx, x.Store, x.t); err != nil {
			return false, err
		}
	}
	return waits == "", nil
}

// rollOut has the sandboxes of the app get its variables, and says what that waits for;
// empty: they have them.
func (x *attached) rollOut(ctx context.Context, project string, vars map[string]string) (string, error) {
	names := slices.Collect(maps.Keys(vars))
	if x.to.Status.Active() != "" {
		ver, err := apps.ActiveVersion(ctx, x.Store, x.to)
		if err != nil {
			return "", err
		}
		stale := slices.ContainsFunc(names, func(n string) bool { return !ver.Spec.Secrets[n].Equal(x.to.Spec.Secrets[n]) })
		switch {
		case x.to.Status.ActiveDeployment != "":
			return fmt.Sprintf("app %s is being deployed", x.to.Name), nil
		case stale:
			return x.redeploy(ctx, project, apps.EnvChange{SetSecret: vars, Deploy: true})
		}
	}
	all, err := sandboxes.OfApp(ctx, x.Store, x.to)
	if err != nil {
		return "", err
	}
	for _, sb := range all {
		if sb.Status.Phase.Ended() {
			continue
		}
		for _, n := range names {
			had, ok := sb.Spec.Template.Secrets[n]
			if !ok || had.Equal(x.to.Spec.Secrets[n]) {
				continue
			}
			// It was sealed anew, such as for a preview from before a detach, or has another value.
			if value, err := x.Sealer.Open(had); err != nil || value != vars[n] {
				return fmt.Sprintf("sandbox %s of app %s has the credentials before", sb.ID, x.to.Name), nil
			}
		}
	}
	return "", nil
}

// redeploy rolls out a change of the app's environment, unless the last attempt failed a
// moment ago. It returns what there is to wait for.
func (x *attached) redeploy(ctx context.Context, project string, change apps.EnvChange) (string, error) {
	if x.to.Status.LastDeployment != "" {
		last, err := entity.Get[app.Deployment](ctx, x.Store, x.to.Status.LastDeployment)
		if err != nil && !errs.Is(err, errs.NotFound) {
			return "", err
		}
		if err == nil && last.Spec.RequestedBy == requestedBy && last.Status.Phase != app.DeploymentPhaseSucceeded && x.failedJustNow(last) {
			return fmt.Sprintf("app %s cannot be rolled out with the new variables (deployment %s); it is tried again", x.to.Name, last.ID), nil
		}
	}
	_, _, err := x.Apps.SetEnv(ctx, project, x.to.Name, change, apps.DeployRequest{RequestedBy: requestedBy, Message: "variables of addon " + x.addon.Name})
	if err != nil && !errs.Is(err, errs.Conflict) {
		return "", err
	}
	return deploying(x.to), nil
}

// detach takes the variables from the app, and then deletes the attachment.
func (x *attached) detach(ctx context.Context, project string) (bool, error) {
	names := slices.Sorted(maps.Keys(addons.Variables(x.addon.Spec.Engine, "", "", 0, "", x.t.Spec.Prefix)))
	change := apps.EnvChange{Unset: names}
	if _, _, err := x.Apps.SetEnv(ctx, project, x.to.Name, change, apps.DeployRequest{}); err != nil {
		return false, err
	}
	var err error
	if x.to, err = entity.Get[app.App](ctx, x.Store, x.t.Spec.App); err != nil {
		return false, err
	}
	// A rollback to a version with the variables gives them to the app again, so the attachment stays until it has ended.
	// Other deployments do not, and some wait until the attachment is gone.
	if under := x.to.Status.ActiveDeployment; under != "" {
		d, err := entity.Get[app.Deployment](ctx, x.Store, under)
		if err != nil {
			return false, entity.AsConflict(err)
		}
		if d.Spec.Kind == app.RolloutKindRollback {
			return false, x.say(ctx, deploying(x.to))
		}
	}
	if x.to.Status.Active() != "" {
		ver, err := apps.ActiveVersion(ctx, x.Store, x.to)
		if err != nil {
			return false, err
		}
		if slices.ContainsFunc(names, func(n string) bool { _, has := ver.Spec.Secrets[n]; return has }) {
			why := deploying(x.to)
			if x.to.Status.ActiveDeployment == "" {
				change.Deploy = true
				if why, err = x.redeploy(ctx, project, change); err != nil {
					return false, err
				}
			}
			return false, x.say(ctx, why)
		}
	}
	return true, entity.Delete(ctx, x.Store, x.t)
}

func deploying(a *app.App) string { return fmt.Sprintf("app %s is being deployed", a.Name) }

// say records the reason why the attachment waits, if it has changed.
func (x *attached) say(ctx context.Context, why string) error {
	if why == x.t.Status.Message {
		return nil
	}
	x.t.Status.Message = why
	return entity.UpdateStatus(ctx, x.Store, x.t)
}
