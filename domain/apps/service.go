package apps

import (
	"context"
	"log/slog"
	"regexp"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/domain/projects"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/informer"
	"miren.dev/runtime/pkg/buildlog"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/pkg/source"
)

// Service is the operations on the apps of one store. It is safe for concurrent
// use.
type Service struct {
	Store     entity.Store
	Informers *informer.Set  // informers of Store, for Follow and BuildLog
	Sealer    *schema.Sealer // seals secret variables
	Sources   *source.Store  // store of uploaded sources
	BuildLogs *buildlog.Logs
	Logger    *slog.Logger
}

var appName = regexp.MustCompile(app.AppNamePattern)

// Find returns the named app of a project. NotFound if it does not exist.
func (s *Service) Find(ctx context.Context, project, name string) (*app.App, error) {
	pid, err := projects.Find(ctx, s.Store, project)
	if err != nil {
		return nil, err
	}
	a, err := entity.ByName[app.App](ctx, s.Store, pid, name)
	if errs.Is(err, errs.NotFound) {
		return nil, errs.New(errs.NotFound, "app %q does not exist", name).With("kind", "app").
			WithHint("`r app list` lists those that do; `r app deploy` creates one, and `r app create` one without a version")
	}
	return a, err
}

// CheckName returns an error of class InvalidArgument for what cannot be the name of an app.
func CheckName(name string) error {
	if appName.MatchString(name) && len(name) <= app.MaxAppName {
		return nil
	}
	return errs.New(errs.InvalidArgument, "app name %q: lower-case letters, digits and dashes, starting with a letter, at most %d", name, app.MaxAppName).
		WithHint("choose another with --app, or name = \"...\" in app.toml")
}

// Create creates an app. AlreadyExists if there is one of that name.
func (s *Service) Create(ctx context.Context, project, name string) (*app.App, error) {
	if err := CheckName(name); err != nil {
		return nil, err
	}
	pid, err := projects.Find(ctx, s.Store, project)
	if err != nil {
		return nil, err
	}
	a := app.NewApp()
	a.Project, a.Name = pid, name
	if err := entity.Create(ctx, s.Store, a); err != nil {
		return nil, err
	}
	return a, nil
}

// Ensure returns the named app, and creates it if it does not exist.
func (s *Service) Ensure(ctx context.Context, project, name string) (*app.App, error) {
	a, err := s.Find(ctx, project, name)
	if !errs.Is(err, errs.NotFound) {
		return a, err
	}
	a, err = s.Create(ctx, project, name)
	if errs.Is(err, errs.AlreadyExists) {
		return s.Find(ctx, project, name)
	}
	return a, err
}

// AddonLabel is the label with the id of the addon that an app runs.
const AddonLabel = "runtime/addon"

// findOwn is Find for what changes an app that is its user's own: the app of an addon
// is changed by the addon.
func (s *Service) findOwn(ctx context.Context, project, name string) (*app.App, error) {
	a, err := s.Find(ctx, project, name)
	if err != nil {
		return nil, err
	}
	return a, checkOwn(a)
}

func checkOwn(a *app.App) error {
	if a.Labels[AddonLabel] == "" {
		return nil
	}
	return errs.New(errs.FailedPrecondition, "app %s runs the addon of that name, which decides what it runs", a.Name).WithHint("`r addon show %s`; `r addon --help` lists what can be done", a.Name)
}

// Delete deletes an app with everything that belongs to it, a deployment under
// way included. The sandboxes are torn down as their entities go.
func (s *Service) Delete(ctx context.Context, project, name string) error {
	return entity.Retry(ctx, func() error {
		a, err := s.findOwn(ctx, project, name)
		if err != nil {
			return err
		}
		// The deployment's store lease lapses by itself.
		return entity.Delete(ctx, s.Store, a)
	})
}
