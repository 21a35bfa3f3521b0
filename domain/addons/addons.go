// Package addons has the operations on addons: databases and stores that apps use.
//
//	Create, Delete              an addon
//	Attach, Detach              the variables of an addon in an app's environment
//	Rotate                      new credentials
//	Backup, Backups, Schedule   snapshots of its disk (backups.go)
//	Restore                     the state of a backup
//	Ensure                      the addons that an app.toml names (ensure.go)
//
// An addon is run by an app of the same name, which is made with it: that app has one
// service, named as the engine, with one sandbox and one disk. Source makes what is
// deployed as that app, Variables what an attached app gets.
//
// The operations change entities; controllers/addon makes the rest match. A refusal is
// an error with the detail "reason":
//
//	attached   apps use the addon
//	deleted    the addon is being deleted
//	variable   the app has a variable of that name already
package addons

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"miren.dev/runtime/api/addon"
	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/domain/apps"
	"miren.dev/runtime/domain/disks"
	"miren.dev/runtime/domain/projects"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/informer"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// Label is the label of the app and the disks of an addon, with its id.
const Label = apps.AddonLabel

// Service is the operations on the addons of one store. It is safe for concurrent use.
type Service struct {
	Store entity.Store
	Apps  *apps.Service
	Disks *disks.Service
	// Run runs a command in the addon's sandbox before a backup; nil: none runs.
	Run Runner
	// Informers are those of Store, for Wait and Delete.
	Informers *informer.Set
}

func refuse(reason, format string, args ...any) *errs.Error {
	return errs.New(errs.FailedPrecondition, format, args...).With("reason", reason)
}

// Find returns the named addon of a project. NotFound if there is none.
func (s *Service) Find(ctx context.Context, project, name string) (*addon.Addon, error) {
	pid, err := projects.Find(ctx, s.Store, project)
	if err != nil {
		return nil, err
	}
	a, err := entity.ByName[addon.Addon](ctx, s.Store, pid, name)
	if errs.Is(err, errs.NotFound) {
		return nil, errs.New(errs.NotFound, "there is no addon %q", name).With("kind", "addon").
			WithHint("`r addon list` lists them; `r addon create postgres %s` makes one", name)
	}
	return a, err
}

// usable is Find for an addon that is not being deleted.
func (s *Service) usable(ctx context.Context, project, name string) (*addon.Addon, error) {
	a, err := s.Find(ctx, project, name)
	if err == nil && a.Spec.Deleted {
		err = refuse("deleted", "addon %s is being deleted", name)
	}
	return a, err
}

var addonName = regexp.MustCompile(addon.AddonNamePattern)

// CreateRequest describes a new addon.
type CreateRequest struct {
	Project     string // "": the default project
	Name        string
	Engine      addon.Engine // "": with Backup that of Source
	Version     string       // "": the one that the machine has packages of
	SizeBytes   int64        // 0: the default
	MemoryBytes int64        // 0: the default
	Source      string       // with Backup: the addon that it is of
	Backup      string       // name of the backup that it begins with; "": it begins empty
}

// Create makes an addon and the app that runs it. Errors: InvalidArgument for a name or
// size that cannot be, AlreadyExists if an addon or an app has the name, NotFound for a
// backup that does not exist.
func (s *Service) Create(ctx context.Context, req CreateRequest) (*addon.Addon, error) {
	pid, err := projects.Find(ctx, s.Store, req.Project)
	if err != nil {
		return nil, err
	}
	a := addon.NewAddon()
	a.Project, a.Name = pid, req.Name
	a.Spec.Engine, a.Spec.Version = req.Engine, req.Version
	if req.SizeBytes != 0 {
		a.Spec.SizeBytes = req.SizeBytes
	}
	if req.MemoryBytes != 0 {
		a.Spec.MemoryBytes = req.MemoryBytes
	}
	if req.Backup != "" {
		if err := s.beginWith(ctx, a, req); err != nil {
			return nil, err
		}
	}
	ops, err := create(a)
	if err != nil {
		return nil, err
	}
	_, err = s.Store.Txn(ctx, entity.TxnRequest{Ops: ops})
	if errs.Is(err, errs.AlreadyExists) {
		err = errs.New(errs.AlreadyExists, "%w", err).WithHint("an addon and the app that runs it have one name; choose another")
	}
	if err != nil {
		return nil, err
	}
	return entity.Get[addon.Addon](ctx, s.Store, a.ID)
}

// beginWith gives a new addon the content of a backup of another.
func (s *Service) beginWith(ctx context.Context, a *addon.Addon, req CreateRequest) error {
	from, err := s.Find(ctx, req.Project, req.Source)
	if err != nil {
		return err
	}
	b, err := s.backup(ctx, from, req.Backup)
	if err != nil {
		return err
	}
	if req.Engine != "" && req.Engine != from.Spec.Engine {
		return errs.New(errs.InvalidArgument, "the backup is of %s, not of %s", from.Spec.Engine, req.Engine)
	}
	a.Spec.Engine, a.Spec.Source = from.Spec.Engine, string(b.ID)
	a.Spec.SizeBytes = max(a.Spec.SizeBytes, from.Spec.SizeBytes)
	if a.Spec.Version == "" {
		a.Spec.Version = from.Status.Version
	}
	return nil
}

// create returns the operations that create an addon with its app.
func create(a *addon.Addon) ([]entity.Op, error) {
	if !addonName.MatchString(a.Name) || len(a.Name) > addon.MaxAddonName {
		return nil, errs.New(errs.InvalidArgument, "addon name %q: lower-case letters, digits and dashes, starting with a letter, at most %d", a.Name, addon.MaxAddonName)
	}
	a.ID = schema.ID(id.NewAddon())
	runs := app.NewApp()
	runs.ID, runs.Project, runs.Name, runs.Labels = schema.ID(id.NewApp()), a.Project, a.Name, map[string]string{Label: string(a.ID)}
	a.Status.App = runs.GetID()
	var ops []entity.Op
	for _, o := range []schema.Object{runs, a} {
		op, err := entity.CreateOp(o)
		if err != nil {
			return nil, err
		}
		ops = append(ops, op)
	}
	return ops, nil
}

// Attachments returns the attachments of an addon.
func Attachments(ctx context.Context, r entity.Reader, a id.Addon) ([]*addon.AddonAttachment, error) {
	list, _, err := entity.List[addon.AddonAttachment](ctx, r, entity.Where(addon.AddonAttachmentAttrAddon, a))
	return list, err
}

// AttachmentsOf returns the attachments of an app.
func AttachmentsOf(ctx context.Context, r entity.Reader, a id.App) ([]*addon.AddonAttachment, error) {
	list, _, err := entity.List[addon.AddonAttachment](ctx, r, entity.Where(addon.AddonAttachmentAttrApp, a))
	return list, err
}

// NewAttachment makes the attachment of an app. No two are of the same addon and app.
func NewAttachment(a *addon.Addon, to *app.App, prefix string) *addon.AddonAttachment {
	t := addon.NewAddonAttachment()
	t.Project, t.Spec.Addon, t.Spec.App, t.Spec.Prefix = a.Project, a.GetID(), to.GetID(), prefix
	t.Spec.Key = fmt.Sprintf("%s/%s", a.ID, to.ID)
	return t
}

// Attach gives an app the variables of an addon, with a prefix if that is not empty, and
// rolls them out. An app that is attached already stays as it is. FailedPrecondition if
// the app has a variable of that name that is not of this addon.
func (s *Service) Attach(ctx context.Context, project, name, appName, prefix string) (t *addon.AddonAttachment, err error) {
	a, err := s.usable(ctx, project, name)
	if err != nil {
		return nil, err
	}
	err = entity.Retry(ctx, func() error {
		to, err := s.Apps.Find(ctx, project, appName)
		if err != nil {
			return err
		}
		if to.Labels[Label] != "" {
			return errs.New(errs.InvalidArgument, "%s is an addon, which cannot be attached to another", appName)
		}
		all, err := AttachmentsOf(ctx, s.Store, to.GetID())
		if err != nil {
			return err
		}
		if i := slices.IndexFunc(all, func(t *addon.AddonAttachment) bool { return t.Spec.Addon == a.GetID() }); i >= 0 {
			t = all[i]
			if t.Spec.Detach {
				return errs.New(errs.Conflict, "addon %s is being detached from app %s", name, appName)
			}
			if t.Spec.Prefix != prefix {
				return entity.Final(refuse("attached", "addon %s is attached to app %s already, with other names of variables", name, appName).
					WithHint("`r addon detach %s --app %s` first", name, appName))
			}
			return nil
		}
		if err := s.free(to, a, prefix); err != nil {
			return entity.Final(err)
		}
		t = NewAttachment(a, to, prefix)
		err = entity.Create(ctx, s.Store, t)
		if errs.Is(err, errs.AlreadyExists) {
			return errs.New(errs.Conflict, "%w", err) // another call attached it
		}
		return err
	})
	return t, err
}

// free refuses if an app has a variable already that the addon would give it. If one has the address of the addon, all
// of them are of the addon: a rollback to a version from before a detach brings them back.
func (s *Service) free(to *app.App, a *addon.Addon, prefix string) error {
	for name := range Variables(a.Spec.Engine, "", "", 0, "", prefix) {
		value, err := s.Apps.Sealer.Open(to.Spec.Secrets[name])
		if err == nil && strings.Contains(value, Endpoint(a.Spec.Engine, a.Name)) {
			return nil
		}
	}
	return free(to, a.Spec.Engine, prefix)
}

// free refuses if an app has a variable of an engine already.
func free(to *app.App, e addon.Engine, prefix string) error {
	for _, name := range slices.Sorted(maps.Keys(Variables(e, "", "", 0, "", prefix))) {
		_, plain := to.Spec.Env[name]
		_, secret := to.Spec.Secrets[name]
		if plain || secret {
			return refuse("variable", "app %s has a variable %s already", to.Name, name).
				WithHint("give the addon's variables a prefix (--as NAME), or remove it: `r app env unset %s -a %s`", name, to.Name)
		}
	}
	return nil
}

// Detach takes the variables of an addon from an app, rolls that out, and returns when the
// version that serves does not have them. NotFound if the app does not have them.
func (s *Service) Detach(ctx context.Context, project, name, appName string) error {
	a, err := s.Find(ctx, project, name)
	if err != nil {
		return err
	}
	to, err := s.Apps.Find(ctx, project, appName)
	if err != nil {
		return err
	}
	all, err := Attachments(ctx, s.Store, a.GetID())
	if err != nil {
		return err
	}
	for _, t := range all {
		if t.Spec.App == to.GetID() {
			_, err := entity.ModifySpec(ctx, s.Store, t.GetID(), func(t *addon.AddonAttachment) error { t.Spec.Detach = true; return nil })
			if err == nil {
				_, err = informer.Of[addon.AddonAttachment](s.Informers).Await(ctx, t.ID, func(*addon.AddonAttachment) (bool, error) { return false, nil })
			}
			return gone(err)
		}
	}
	return errs.New(errs.NotFound, "addon %s is not attached to app %s", name, appName).WithHint("`r addon show %s` lists the apps", name)
}

// gone turns the end of a wait for a deletion into success.
func gone(err error) error {
	if errs.Is(err, errs.NotFound) {
		return nil
	}
	return err
}

// Rotate gives an addon new credentials. The apps get them; when each of their sandboxes
// has them, the addon refuses the old ones.
func (s *Service) Rotate(ctx context.Context, project, name string) (*addon.Addon, error) {
	a, err := s.usable(ctx, project, name)
	if err != nil {
		return nil, err
	}
	return entity.ModifySpec(ctx, s.Store, a.GetID(), func(a *addon.Addon) error {
		if n := len(a.Status.Credentials); n > 1 || n == 1 && a.Status.Credentials[0].Number != a.Spec.Credential {
			return errs.New(errs.Conflict, "the rotation before is not over: %s", a.Status.Message).WithHint("`r addon show %s` says what it waits for", name)
		}
		a.Spec.Credential++
		return nil
	})
}

// Delete deletes an addon with its disks and backups, and returns when it is gone. It
// refuses while apps use the addon, unless force is set; then they lose the variables
// first.
func (s *Service) Delete(ctx context.Context, project, name string, force bool) error {
	a, err := s.Find(ctx, project, name)
	if err != nil {
		return err
	}
	all, err := Attachments(ctx, s.Store, a.GetID())
	if err != nil {
		return err
	}
	if len(all) > 0 && !force {
		var names []string
		for _, t := range all {
			names = append(names, s.appName(ctx, t))
		}
		return refuse("attached", "addon %s is used by app %s", name, strings.Join(names, ", ")).
			WithHint("`r addon detach %s --app %s` first; --force deletes it anyway", name, names[0])
	}
	_, err = entity.ModifySpec(ctx, s.Store, a.GetID(), func(a *addon.Addon) error { a.Spec.Deleted = true; return nil })
	if err == nil {
		_, err = informer.Of[addon.Addon](s.Informers).Await(ctx, a.ID, func(*addon.Addon) (bool, error) { return false, nil })
	}
	return gone(err)
}

// Wait returns when an addon is as it is wanted (addon.Settled) and, with appName, each
// sandbox of that attached app has its variables. FailedPrecondition with the reason if
// the addon cannot be started; it is tried again all the same.
func (s *Service) Wait(ctx context.Context, project, name, appName string) (*addon.Addon, error) {
	now, err := s.usable(ctx, project, name)
	if err != nil {
		return nil, err
	}
	a, err := informer.Of[addon.Addon](s.Informers).Await(ctx, now.ID, func(a *addon.Addon) (bool, error) {
		if a.Revision < now.Revision {
			return false, nil // the informer is behind
		}
		if a.Status.Phase == addon.AddonPhaseFailed {
			return false, errs.New(errs.FailedPrecondition, "addon %s cannot be started: %s", name, a.Status.Message).
				WithHint("it is tried again; `r app logs %s` and `r app status %s` say more", name, name)
		}
		return a.Settled(), nil
	})
	if err != nil || appName == "" {
		return a, err
	}
	to, err := s.Apps.Find(ctx, project, appName)
	if err != nil {
		return nil, err
	}
	all, err := AttachmentsOf(ctx, s.Store, to.GetID())
	if err != nil {
		return nil, err
	}
	for _, t := range all {
		if t.Spec.Addon == a.GetID() {
			_, err := informer.Of[addon.AddonAttachment](s.Informers).Await(ctx, t.ID, func(t *addon.AddonAttachment) (bool, error) {
				return t.Status.Running == a.Spec.Credential, nil
			})
			return a, err
		}
	}
	return nil, errs.New(errs.NotFound, "addon %s is not attached to app %s", name, appName)
}

// appName returns the name of an attached app, for messages.
func (s *Service) appName(ctx context.Context, t *addon.AddonAttachment) string {
	if to, err := entity.Get[app.App](ctx, s.Store, t.Spec.App); err == nil {
		return to.Name
	}
	return string(t.Spec.App)
}
