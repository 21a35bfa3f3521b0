package build

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"

	"github.com/containerd/containerd/v2/core/content"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/components/buildkit"
	"miren.dev/runtime/domain/images"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/buildlog"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/pkg/stack"
)

// maxDockerfile bounds a Dockerfile of a template, in bytes.
const maxDockerfile = 1 << 20

// template makes the image of a version of a template: of a Dockerfile, or one
// that exists already. dir has the files of the source.
func (r *Reconciler) template(ctx context.Context, b *app.Build, dir string, log *buildlog.Writer) (*outcome, error) {
	if b.Spec.Image != "" {
		image, err := r.existing(ctx, b.Project, b.Spec.Image, log)
		return &outcome{image: image}, because(app.FailureReasonImage, err)
	}
	v, err := entity.Get[sandbox.TemplateVersion](ctx, r.Store, b.Spec.TemplateVersion)
	if err != nil {
		return nil, because(app.FailureReasonInternal, err)
	}
	plan := &stack.Plan{Stack: "dockerfile", Dockerfile: stack.WithSecrets(b.Spec.Instructions, slices.Sorted(maps.Keys(b.Spec.Secrets)))}
	if b.Spec.Dockerfile != "" {
		if plan.Dockerfile, err = readDockerfile(dir, b.Spec.Dockerfile); err != nil {
			return nil, because(app.FailureReasonSource, err)
		}
	}
	if plan.Bases, plan.Secrets, err = stack.Inputs(plan.Dockerfile); err != nil {
		return nil, because(app.FailureReasonPlan, errs.New(errs.InvalidArgument, "Dockerfile: %w", err))
	}
	steps := &stepLog{Writer: log}
	bases, err := r.bases(ctx, b.Project, plan, steps)
	if err != nil {
		return nil, because(app.FailureReasonImage, err)
	}
	secrets, err := r.templateSecrets(b, plan.Secrets, log)
	if err != nil {
		return nil, because(app.FailureReasonBuild, err)
	}
	res, err := r.image(ctx, buildkit.Request{
		ContextDir: dir, Dockerfile: plan.Dockerfile, ImageName: images.Name(v.Spec.Template), Bases: bases,
		CacheScope: string(b.Project), ContextKey: string(v.Spec.Template), Secrets: secrets, NoCache: b.Spec.NoCache,
	}, steps)
	if err != nil {
		return nil, err
	}
	return &outcome{image: res.Image, plan: plan}, nil
}

// existing returns the reference of an image that a build of the project made,
// or of a base image, which it makes if necessary.
func (r *Reconciler) existing(ctx context.Context, project schema.ID, name string, log *buildlog.Writer) (string, error) {
	if images.Built(name) {
		_, err := r.ownImage(ctx, project, name)
		return name, err
	}
	if err := images.Check(ctx, r.Store, project, name); err != nil {
		return "", err
	}
	// For the progress; Image then finds it made.
	if _, _, err := r.Bases.Resolve(ctx, []string{name}, func(line string) { say(log, "%s", line) }); err != nil {
		return "", err
	}
	image, err := r.Image(ctx, name)
	if err == nil {
		say(log, "%s is %s", name, image)
	}
	return image, err
}

// ownImage returns the store of an image that a build made. NotFound if it was a
// build of another project, or the image does not exist.
func (r *Reconciler) ownImage(ctx context.Context, project schema.ID, image string) (content.Store, error) {
	if err := images.Check(ctx, r.Store, project, image); err != nil {
		return nil, err
	}
	return r.Content(ctx, image)
}

// readDockerfile reads a Dockerfile of the source in dir, which may not lead
// out of it.
func readDockerfile(dir, name string) (string, error) {
	f, err := os.OpenInRoot(dir, name)
	if errors.Is(err, fs.ErrNotExist) {
		return "", errs.New(errs.InvalidArgument, "the source has no %s", name).WithHint("say where it is with --file; is it ignored by .gitignore?")
	}
	if err != nil {
		return "", errs.New(errs.InvalidArgument, "Dockerfile: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxDockerfile+1))
	if err == nil && len(b) > maxDockerfile {
		err = errs.New(errs.InvalidArgument, "it has more than %d MiB", maxDockerfile>>20)
	}
	if err != nil {
		return "", errs.New(errs.InvalidArgument, "%s: %w", name, err)
	}
	return string(b), nil
}
