package rest

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"miren.dev/runtime/api/addon"
	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/disk"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/remote"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/opt"
)

// Addon is a database or store in a sandbox of its own, which apps use.
type Addon struct {
	Name        string    `json:"name" doc:"Name." example:"db"`
	ID          string    `json:"id" doc:"Id."`
	Engine      string    `json:"engine" enum:"postgres,valkey,mysql,s3" doc:"Program that it is."`
	Version     string    `json:"version,omitempty" doc:"Version of the program that wrote its disk." example:"15"`
	State       string    `json:"state" enum:"pending,ready,rotating,failed,deleting" doc:"State."`
	Message     string    `json:"message,omitempty" doc:"What it waits for, or why it failed."`
	Endpoint    string    `json:"endpoint,omitempty" doc:"Host and port, for the apps of the project." example:"db.internal:5432"`
	SizeBytes   int64     `json:"size_bytes" doc:"Size of its disk."`
	MemoryBytes int64     `json:"memory_bytes" doc:"Memory of its sandbox."`
	Credential  int64     `json:"credential" doc:"Number of the credential that apps are to have. A rotation counts up."`
	CreatedAt   time.Time `json:"created_at" doc:"Time of its creation."`
}

// AddonUse is an app that has the variables of an addon.
type AddonUse struct {
	App     string `json:"app" doc:"Name of the app." example:"shop"`
	Prefix  string `json:"prefix,omitempty" doc:"Prefix of the names of the variables." example:"REPORTS"`
	Current bool   `json:"current" doc:"Each sandbox of the app has the present credential."`
	Message string `json:"message,omitempty" doc:"What it waits for."`
}

// AddonBackup is the state of an addon at one moment, a snapshot of its disk.
type AddonBackup struct {
	VolumeSnapshot
	Volume string `json:"volume" doc:"Name of the disk that it is a snapshot of." example:"db-data"`
}

// AddonDetails is an addon with the apps that use it and its backups.
type AddonDetails struct {
	Addon
	Apps    []AddonUse    `json:"apps" doc:"Apps that have its variables."`
	Backups []AddonBackup `json:"backups" doc:"Its backups, newest first."`
}

// AddonInput names an addon.
type AddonInput struct {
	Addon string `path:"addon" maxLength:"40" pattern:"^[a-z]([a-z0-9-]*[a-z0-9])?$" doc:"Name of the addon." example:"db"`
}

func addonOf(a *addon.Addon) Addon {
	return Addon{
		Name: a.Name, ID: string(a.ID), Engine: string(a.Spec.Engine), Version: cmp.Or(a.Status.Version, a.Spec.Version), State: string(a.Status.Phase),
		Message: a.Status.Message, Endpoint: a.Status.Endpoint, SizeBytes: a.Spec.SizeBytes, MemoryBytes: a.Spec.MemoryBytes, Credential: a.Spec.Credential,
		CreatedAt: a.CreatedAt,
	}
}

func registerAddons(a huma.API) {
	const tag = "addons"
	register(a, op(http.MethodPost, "/addons", "create-addon", tag, "Make an addon, empty or of a backup", status(http.StatusCreated)), createAddon)
	register(a, op(http.MethodGet, "/addons", "list-addons", tag, "List the addons of the project"), listAddons)
	register(a, op(http.MethodGet, "/addons/{addon}", "get-addon", tag, "Get an addon with the apps that use it and its backups"), getAddon)
	register(a, op(http.MethodGet, "/addons/{addon}/wait", "wait-addon", tag, "Wait until an addon is as it is wanted"), waitAddon)
	register(a, op(http.MethodDelete, "/addons/{addon}", "delete-addon", tag, "Delete an addon with its data and backups", status(http.StatusNoContent)), deleteAddon)
	register(a, op(http.MethodPost, "/addons/{addon}/rotate", "rotate-addon", tag, "Give an addon and its apps new credentials"), rotateAddon)
	register(a, op(http.MethodPut, "/addons/{addon}/apps/{app}", "attach-addon", tag, "Give an app the variables of an addon"), attachAddon)
	register(a, op(http.MethodDelete, "/addons/{addon}/apps/{app}", "detach-addon", tag, "Take the variables of an addon from an app", status(http.StatusNoContent)), detachAddon)
	register(a, op(http.MethodPost, "/addons/{addon}/backups", "create-addon-backup", tag, "Keep the present state of an addon", status(http.StatusCreated)), createAddonBackup)
	register(a, op(http.MethodDelete, "/addons/{addon}/backups/{backup}", "delete-addon-backup", tag, "Delete a backup of an addon", status(http.StatusNoContent)), deleteAddonBackup)
	register(a, op(http.MethodPost, "/addons/{addon}/backups/{backup}/restore", "restore-addon-backup", tag, "Bring an addon back to a backup"), restoreAddonBackup)
}

func addons(ctx context.Context) addon.AddonsClient {
	return addon.NewAddonsClient(callerFrom(ctx).Client)
}

func addonBody(resp *addon.AddonResponse, err error) (*body[Addon], error) {
	if err != nil {
		return nil, err
	}
	a, err := entity.Decode[addon.Addon](&resp.Addon)
	if err != nil {
		return nil, err
	}
	return &body[Addon]{addonOf(a)}, nil
}

type createAddonInput struct {
	Body struct {
		Name        string `json:"name" minLength:"1" maxLength:"40" pattern:"^[a-z]([a-z0-9-]*[a-z0-9])?$" doc:"Name; the app that runs it has the same." example:"db"`
		Engine      string `json:"engine,omitempty" enum:"postgres,valkey,mysql,s3" doc:"Program; with a backup that of its addon."`
		Version     string `json:"version,omitempty" maxLength:"16" doc:"Version of the program; absent: the one that the server's machine has packages of." example:"15"`
		SizeBytes   int64  `json:"size_bytes,omitempty" minimum:"16777216" maximum:"17592186044416" multipleOf:"4096" doc:"Size of its disk; absent: 10 GiB, with a backup that of the backup." example:"1073741824"`
		MemoryBytes int64  `json:"memory_bytes,omitempty" minimum:"1" doc:"Memory of its sandbox; absent: 512 MiB."`
		Source      string `json:"source,omitempty" maxLength:"40" doc:"Addon of the backup."`
		Backup      string `json:"backup,omitempty" maxLength:"63" doc:"Backup of the source that it begins with; absent: it begins empty."`
	}
}

type createdAddon struct {
	Location string `header:"Location"`
	Body     Addon
}

func createAddon(ctx context.Context, in *createAddonInput) (*createdAddon, error) {
	b := &in.Body
	a, err := addonBody(addons(ctx).Create(ctx, &addon.CreateAddonRequest{
		Project: callerFrom(ctx).Project(), Addon: b.Name, Engine: addon.Engine(b.Engine), Version: b.Version, SizeBytes: opt.Of(b.SizeBytes),
		MemoryBytes: opt.Of(b.MemoryBytes), Source: b.Source, Backup: b.Backup,
	}))
	if err != nil {
		return nil, err
	}
	return &createdAddon{Prefix + "/addons/" + b.Name, a.Body}, nil
}

// AddonPage is a page of a list.
type AddonPage struct {
	Addons     []Addon `json:"addons" doc:"Addons, in the order of their ids."`
	NextCursor string  `json:"next_cursor,omitempty" doc:"For the next page; absent on the last."`
}

func listAddons(ctx context.Context, in *ListInput) (*body[AddonPage], error) {
	list, cursor, err := listPage[addon.Addon](ctx, addon.KindAddon, in)
	if err != nil {
		return nil, err
	}
	out := AddonPage{Addons: []Addon{}, NextCursor: cursor}
	for _, a := range list {
		out.Addons = append(out.Addons, addonOf(a))
	}
	return &body[AddonPage]{out}, nil
}

func getAddon(ctx context.Context, in *AddonInput) (*body[AddonDetails], error) {
	store := remote.New(callerFrom(ctx).Client)
	a, err := byName[addon.Addon](ctx, in.Addon)
	if err != nil {
		return nil, err
	}
	out := AddonDetails{Addon: addonOf(a), Apps: []AddonUse{}, Backups: []AddonBackup{}}
	uses, err := all[addon.AddonAttachment](ctx, entity.Where(addon.AddonAttachmentAttrAddon, a.GetID()))
	if err != nil {
		return nil, err
	}
	for _, u := range uses {
		user, err := entity.Get[app.App](ctx, store, u.Spec.App)
		if errs.Is(err, errs.NotFound) {
			continue // it was deleted meanwhile, with the attachment
		}
		if err != nil {
			return nil, err
		}
		out.Apps = append(out.Apps, AddonUse{
			App: user.Name, Prefix: u.Spec.Prefix, Current: !u.Spec.Detach && u.Status.Running == a.Spec.Credential, Message: u.Status.Message,
		})
	}
	out.Backups, err = addonBackups(ctx, a)
	return &body[AddonDetails]{out}, err
}

// addonBackups returns the backups of an addon, newest first: those of its present disk,
// and of the disks that it had before restores.
func addonBackups(ctx context.Context, a *addon.Addon) ([]AddonBackup, error) {
	out := []AddonBackup{}
	for n := int64(1); n <= a.Spec.Disk; n++ {
		d, err := findDisk(ctx, addon.DiskName(a.Name, n))
		if errs.Is(err, errs.NotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		snaps, err := all[disk.DiskSnapshot](ctx, entity.Where(disk.DiskSnapshotAttrDisk, d.ID))
		if err != nil {
			return nil, err
		}
		for _, s := range snaps {
			if s.Spec.Copy == "" && !s.Spec.Deleted {
				out = append(out, AddonBackup{volumeSnapshotOf(s), d.Name})
			}
		}
	}
	slices.SortStableFunc(out, func(a, b AddonBackup) int { return b.CreatedAt.Compare(a.CreatedAt) })
	return out, nil
}

type waitAddonInput struct {
	AddonInput
	App     string `query:"app" maxLength:"40" doc:"Wait also until each sandbox of this attached app has the variables."`
	Seconds int    `query:"seconds" minimum:"1" maximum:"600" default:"60" doc:"Longest wait; then the answer has the state of that moment."`
}

func waitAddon(ctx context.Context, in *waitAddonInput) (*body[Addon], error) {
	wait, cancel := context.WithTimeout(ctx, time.Duration(in.Seconds)*time.Second)
	defer cancel()
	out, err := addonBody(addons(ctx).Wait(wait, &addon.WaitAddonRequest{Project: callerFrom(ctx).Project(), Addon: in.Addon, App: in.App}))
	if err != nil && wait.Err() != nil && ctx.Err() == nil {
		a, err := byName[addon.Addon](ctx, in.Addon)
		if err != nil {
			return nil, err
		}
		return &body[Addon]{addonOf(a)}, nil
	}
	return out, err
}

type deleteAddonInput struct {
	AddonInput
	Force bool `query:"force" doc:"Also while apps use it; they lose the variables."`
}

func deleteAddon(ctx context.Context, in *deleteAddonInput) (*struct{}, error) {
	return nil, addons(ctx).Delete(ctx, &addon.DeleteAddonRequest{Project: callerFrom(ctx).Project(), Addon: in.Addon, Force: opt.Of(in.Force)})
}

func rotateAddon(ctx context.Context, in *AddonInput) (*body[Addon], error) {
	return addonBody(addons(ctx).Rotate(ctx, &addon.AddonRequest{Project: callerFrom(ctx).Project(), Addon: in.Addon}))
}

type addonAppInput struct {
	AddonInput
	AppInput
}

type attachAddonInput struct {
	AddonInput
	AppInput
	Body struct {
		Prefix string `json:"prefix,omitempty" maxLength:"32" pattern:"^[A-Z][A-Z0-9_]{0,31}$" doc:"Prefix of the names of the variables; absent: none." example:"REPORTS"`
	}
}

func attachAddon(ctx context.Context, in *attachAddonInput) (*body[AddonUse], error) {
	resp, err := addons(ctx).Attach(ctx, &addon.AttachAddonRequest{Project: callerFrom(ctx).Project(), Addon: in.Addon, App: in.App, Prefix: in.Body.Prefix})
	if err != nil {
		return nil, err
	}
	u, err := entity.Decode[addon.AddonAttachment](&resp.Attachment)
	if err != nil {
		return nil, err
	}
	return &body[AddonUse]{AddonUse{App: in.App, Prefix: u.Spec.Prefix, Message: u.Status.Message}}, nil
}

func detachAddon(ctx context.Context, in *addonAppInput) (*struct{}, error) {
	return nil, addons(ctx).Detach(ctx, &addon.AttachAddonRequest{Project: callerFrom(ctx).Project(), Addon: in.Addon, App: in.App})
}

type createAddonBackupInput struct {
	AddonInput
	Body struct {
		Name string `json:"name,omitempty" maxLength:"63" pattern:"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$" doc:"Name among the backups of the addon; absent: the time." example:"monday"`
	}
}

func createAddonBackup(ctx context.Context, in *createAddonBackupInput) (*body[VolumeSnapshot], error) {
	resp, err := addons(ctx).Backup(ctx, &addon.BackupAddonRequest{Project: callerFrom(ctx).Project(), Addon: in.Addon, Backup: in.Body.Name})
	if err != nil {
		return nil, err
	}
	s, err := entity.Decode[disk.DiskSnapshot](&resp.Backup)
	if err != nil {
		return nil, err
	}
	return &body[VolumeSnapshot]{volumeSnapshotOf(s)}, nil
}

type addonBackupInput struct {
	AddonInput
	Backup string `path:"backup" maxLength:"63" pattern:"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$" doc:"Name of the backup." example:"monday"`
}

func (in *addonBackupInput) request(ctx context.Context) *addon.AddonBackupRequest {
	return &addon.AddonBackupRequest{Project: callerFrom(ctx).Project(), Addon: in.Addon, Backup: in.Backup}
}

func deleteAddonBackup(ctx context.Context, in *addonBackupInput) (*struct{}, error) {
	return nil, addons(ctx).DeleteBackup(ctx, in.request(ctx))
}

func restoreAddonBackup(ctx context.Context, in *addonBackupInput) (*body[Addon], error) {
	return addonBody(addons(ctx).Restore(ctx, in.request(ctx)))
}
