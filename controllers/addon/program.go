package addon

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"strings"

	"miren.dev/runtime/api/addon"
	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/disk"
	"miren.dev/runtime/domain/addons"
	"miren.dev/runtime/domain/apps"
	"miren.dev/runtime/domain/disks"
	"miren.dev/runtime/domain/projects"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/source"
)

// disk makes the disk of the addon: empty, or with the content of a backup.
func (w *work) disk(ctx context.Context) (outcome, error) {
	a := w.addon
	name := addon.DiskName(a.Name, a.Spec.Disk)
	d, err := entity.ByName[disk.Disk](ctx, w.Store, a.Project, name)
	if errs.Is(err, errs.NotFound) {
		return w.makeDisk(ctx, name)
	}
	if err != nil {
		return outcome{}, err
	}
	switch {
	case d.Labels[addons.Label] != string(a.ID):
		return w.wait(ctx, addon.AddonPhaseFailed, fmt.Sprintf("there is a disk %s that is not of this addon; rename or delete that one", name))
	case d.Spec.Deleted:
		return w.wait(ctx, addon.AddonPhaseFailed, fmt.Sprintf("disk %s is being deleted", name))
	case d.Status.Phase == disk.DiskPhaseReady:
		return done, nil
	case d.Status.Phase == disk.DiskPhaseFailed:
		return w.wait(ctx, addon.AddonPhaseFailed, fmt.Sprintf("disk %s cannot be made: %s", name, d.Status.Message))
	}
	return w.wait(ctx, addon.AddonPhasePending, strings.TrimSpace(fmt.Sprintf("disk %s is being made %s", name, d.Status.Message)))
}

func (w *work) makeDisk(ctx context.Context, name string) (outcome, error) {
	a := w.addon
	d := disk.NewDisk()
	d.Project, d.Name, d.Spec.SizeBytes, d.Labels = a.Project, name, a.Spec.SizeBytes, map[string]string{addons.Label: string(a.ID)}
	if a.Spec.Source != "" {
		snap, err := entity.Get[disk.DiskSnapshot](ctx, w.Store, a.Spec.Source)
		if errs.Is(err, errs.NotFound) {
			return w.wait(ctx, addon.AddonPhaseFailed, "the backup that it begins with was deleted")
		}
		if err != nil {
			return outcome{}, err
		}
		from, err := entity.Get[disk.Disk](ctx, w.Store, snap.Spec.Disk)
		if err != nil {
			return outcome{}, err
		}
		d.Spec.Store, d.Spec.FileSystem, d.Spec.SourceDisk, d.Spec.SourceSnapshot = from.Spec.Store, from.Spec.FileSystem, string(from.ID), string(snap.ID)
		if snap.Status.SizeBytes != nil {
			d.Spec.SizeBytes = *snap.Status.SizeBytes
		}
		if from.Labels[addons.Label] == string(a.ID) { // restored in place: the schedule of backups goes on
			disks.CopySchedule(&d.Spec, &from.Spec)
		}
	}
	err := entity.Create(ctx, w.Store, d)
	if errs.Is(err, errs.AlreadyExists) {
		return changed, nil
	}
	return waits, err
}

// deploy has the addon's app run the program with the disk.
func (w *work) deploy(ctx context.Context) (outcome, error) {
	a := w.addon
	runs, err := entity.Get[app.App](ctx, w.Store, a.Status.App)
	if err != nil {
		return outcome{}, err
	}
	w.app = runs
	name := addon.DiskName(a.Name, a.Spec.Disk)
	want, err := addons.Source(a, name)
	if err != nil {
		return outcome{}, err
	}
	digest, err := w.Apps.Sources.Keep(ctx, want)
	if err != nil {
		return outcome{}, err
	}
	if runs.Status.ActiveDeployment != "" {
		return w.wait(ctx, addon.AddonPhasePending, fmt.Sprintf("its app is being deployed; `r app status %s` shows how far", a.Name))
	}
	if a.Status.Source == string(digest) {
		return done, nil
	}
	if last, err := w.lastDeployment(ctx, digest); last != nil || err != nil {
		switch {
		case err != nil:
			return outcome{}, err
		case last.Status.Phase == app.DeploymentPhaseSucceeded:
			a.Status.Source, a.Status.Endpoint, a.Status.Disk = string(digest), addons.Endpoint(a.Spec.Engine, a.Name), name
			return changed, entity.UpdateStatus(ctx, w.Store, a)
		case w.failedJustNow(last) && faultOfSystem(last):
			return w.wait(ctx, addon.AddonPhasePending, because(last))
		case w.failedJustNow(last):
			return w.wait(ctx, addon.AddonPhaseFailed, because(last))
		}
	}
	return w.begin(ctx, digest)
}

// failedJustNow reports whether a deployment that failed ended less than retryAfter ago, or retrySoon after a fault of the
// system: then the controller does not begin the next one yet.
func (r *Reconciler) failedJustNow(d *app.Deployment) bool {
	after := retryAfter
	if faultOfSystem(d) {
		after = retrySoon
	}
	return d.Status.EndedAt != nil && r.now().Sub(*d.Status.EndedAt) < after
}

// faultOfSystem reports whether the system made a deployment fail, and not its app.
func faultOfSystem(d *app.Deployment) bool {
	return d.Status.Failure != nil && d.Status.Failure.Reason == app.FailureReasonInternal
}

// because explains a deployment that did not succeed.
func because(d *app.Deployment) string {
	if f := d.Status.Failure; f != nil {
		return fmt.Sprintf("its app cannot be deployed: %s; it is tried again", strings.TrimSpace(f.Message+" "+strings.Join(f.LogTail, "\n")))
	}
	return fmt.Sprintf("the deployment of its app is %s; it is tried again", d.Status.Phase)
}

// lastDeployment returns the last deployment of the addon's app if that was of a source.
func (w *work) lastDeployment(ctx context.Context, digest source.Digest) (*app.Deployment, error) {
	if w.app.Status.LastDeployment == "" {
		return nil, nil
	}
	dep, err := entity.Get[app.Deployment](ctx, w.Store, w.app.Status.LastDeployment)
	if err != nil || dep.Spec.Build == "" {
		return nil, ignoreNotFound(err)
	}
	b, err := entity.Get[app.Build](ctx, w.Store, dep.Spec.Build)
	if err != nil || b.Spec.Source != string(digest) {
		return nil, ignoreNotFound(err)
	}
	return dep, nil
}

func ignoreNotFound(err error) error {
	if errs.Is(err, errs.NotFound) {
		return nil
	}
	return err
}

// begin deploys the addon's app.
func (w *work) begin(ctx context.Context, digest source.Digest) (outcome, error) {
	_, err := w.Apps.Deploy(ctx, w.app, apps.DeployRequest{
		Kind: app.RolloutKindDeploy, Source: digest, RequestedBy: requestedBy, Message: "addon " + w.addon.Name,
	})
	if errs.Is(err, errs.Conflict) {
		return waits, nil
	}
	if err != nil {
		return outcome{}, err
	}
	return w.wait(ctx, addon.AddonPhasePending, fmt.Sprintf("its app is being deployed; `r app status %s` shows how far", w.addon.Name))
}

// ready waits for the sandbox with the program.
func (w *work) ready(ctx context.Context) (out outcome, err error) {
	if w.sb, err = addons.Sandbox(ctx, w.Store, w.app); err != nil {
		return outcome{}, err
	}
	if w.sb == nil {
		return w.wait(ctx, addon.AddonPhasePending, fmt.Sprintf("its sandbox is not ready; `r app status %s` says more", w.addon.Name))
	}
	return done, nil
}

// credentials gives the program its users.
func (w *work) credentials(ctx context.Context) (outcome, error) {
	a := w.addon
	if !slices.ContainsFunc(a.Status.Credentials, func(c addon.Credential) bool { return c.Number == a.Spec.Credential }) {
		sealed, err := w.Sealer.Seal(rand.Text())
		if err != nil {
			return outcome{}, err
		}
		a.Status.Credentials = append(a.Status.Credentials, addon.Credential{Number: a.Spec.Credential, Password: sealed})
		return changed, entity.UpdateStatus(ctx, w.Store, a)
	}
	known := a.Status.Users()
	var lines strings.Builder
	for _, c := range a.Status.Credentials {
		password, err := w.Sealer.Open(c.Password)
		if err != nil {
			return outcome{}, errs.Wrap(err, "password of addon %s", a.Name)
		}
		fmt.Fprintf(&lines, "%s %s\n", addons.User(c.Number), password)
	}
	if a.Status.Applied == known {
		return done, nil
	}
	ctx, cancel := context.WithTimeout(ctx, runTimeout)
	defer cancel()
	out, err := w.Run(ctx, w.sb.GetID(), lines.String(), addons.UsersCommand)
	if err != nil {
		if rerr := w.report(ctx, addon.AddonPhasePending, "its program does not take its users: "+err.Error()); rerr != nil {
			return outcome{}, rerr
		}
		return waits, nil
	}
	for line := range strings.Lines(out) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), "version="); ok {
			a.Status.Version = v
		}
	}
	a.Status.Version = cmp.Or(a.Status.Version, a.Spec.Version)
	a.Status.Applied = known
	// The source names this version from now on, which changes nothing that runs.
	pinned, err := addons.Source(a, a.Status.Disk)
	if err != nil {
		return outcome{}, err
	}
	digest, err := w.Apps.Sources.Keep(ctx, pinned)
	if err != nil {
		return outcome{}, err
	}
	a.Status.Source = string(digest)
	return changed, entity.UpdateStatus(ctx, w.Store, a)
}

// forget drops the credentials that no sandbox of an attached app has any more.
func (w *work) forget(ctx context.Context) (outcome, error) {
	a := w.addon
	if len(a.Status.Credentials) == 1 {
		return done, nil
	}
	a.Status.Credentials = slices.DeleteFunc(a.Status.Credentials, func(c addon.Credential) bool { return c.Number != a.Spec.Credential })
	return changed, entity.UpdateStatus(ctx, w.Store, a)
}

// project returns the name of the addon's project.
func (w *work) project(ctx context.Context) (string, error) {
	return projects.Of(ctx, w.Store, addon.KindAddon, w.addon.ID)
}
