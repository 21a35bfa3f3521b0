package retention

import (
	"context"
	"log/slog"
	"strings"
	"time"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/components/containerd"
	"miren.dev/runtime/domain/images"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
)

// ImageStore lists and deletes images; *containerd.Images is one.
type ImageStore interface {
	List(ctx context.Context, labels map[string]string) ([]containerd.Record, error)
	Delete(ctx context.Context, ref string) error
}

const (
	// imagesEvery is how often unused images are collected.
	imagesEvery = 2 * time.Minute
	// youngImage protects an image whose build has not recorded it yet.
	youngImage = 10 * time.Minute
)

// Images deletes images of builds that no version, build, sandbox or snapshot names, and base images that were replaced by
// later ones and that none of these names.
type Images struct {
	Store  entity.Reader
	Images ImageStore
	// Bases returns the digests of the base images of the machine, with the time at which another one replaced them; the
	// zero time: none did. nil: base images stay.
	Bases  func() (map[string]time.Time, error)
	Logger *slog.Logger
	Now    func() time.Time // nil: time.Now
}

// Run collects every two minutes until ctx ends.
func (r *Images) Run(ctx context.Context) error {
	return collectImages(ctx, r.Collect, r.Logger)
}

// collectImages calls collect every two minutes until ctx ends.
func collectImages(ctx context.Context, collect func(context.Context) (int, error), log *slog.Logger) error {
	t := time.NewTicker(imagesEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
			if _, err := collect(ctx); err != nil && ctx.Err() == nil {
				log.Warn("collect unused images", "error", err)
			}
		}
	}
}

// Collect deletes unused images and returns their number. It deletes nothing unless it could read every entity that may
// name an image. It reads these entities after the images, so that it sees an entity that names an image meanwhile.
func (r *Images) Collect(ctx context.Context) (int, error) {
	all, err := r.Images.List(ctx, nil)
	if err != nil {
		return 0, err
	}
	used, err := r.used(ctx)
	if err != nil {
		return 0, err
	}
	now := time.Now()
	if r.Now != nil {
		now = r.Now()
	}
	replaced, basesErr := r.replaced(all, now)
	n := 0
	for _, img := range all {
		ours := images.Built(img.Ref) || replaced[img.Ref] // no other image is touched
		if !ours || used[img.Ref] || now.Sub(img.CreatedAt) < youngImage {
			continue
		}
		if err := r.Images.Delete(ctx, img.Ref); err != nil {
			return n, errs.Wrap(err, "delete image %s", img.Ref)
		}
		r.Logger.Info("deleted", "kind", "image", "image", img.Ref)
		n++
	}
	return n, basesErr
}

// replaced returns the base images of which the machine has a later one, by reference. One that was replaced just now is
// not among them: a sandbox that is being made may be about to name it.
func (r *Images) replaced(all []containerd.Record, now time.Time) (map[string]bool, error) {
	replaced := map[string]bool{}
	if r.Bases == nil {
		return replaced, nil
	}
	bases, err := r.Bases()
	if err != nil {
		return replaced, errs.Wrap(err, "which base images were replaced")
	}
	for _, img := range all {
		made, ok := img.Labels[images.LabelBase]
		if !ok || !strings.HasPrefix(img.Ref, images.BasePrefix) {
			continue
		}
		at, exists := bases["sha256:"+made]
		replaced[img.Ref] = !exists || !at.IsZero() && now.Sub(at) >= youngImage
	}
	return replaced, nil
}

func (r *Images) used(ctx context.Context) (map[string]bool, error) {
	used := map[string]bool{}
	versions, _, err := entity.List[app.AppVersion](ctx, r.Store, entity.Query{})
	if err != nil {
		return nil, err
	}
	for _, v := range versions {
		used[v.Spec.Image] = true
	}
	built, _, err := entity.List[sandbox.TemplateVersion](ctx, r.Store, entity.Query{})
	if err != nil {
		return nil, err
	}
	for _, v := range built {
		used[v.Status.Image] = true
	}
	builds, _, err := entity.List[app.Build](ctx, r.Store, entity.Query{})
	if err != nil {
		return nil, err
	}
	for _, b := range builds {
		// The version of a finished build, which names the image, may not exist
		// yet.
		if b.Status.EndedAt == nil || time.Since(*b.Status.EndedAt) < youngImage {
			used[b.Status.Image] = true
		}
	}
	pools, _, err := entity.List[sandbox.SandboxPool](ctx, r.Store, entity.Query{})
	if err != nil {
		return nil, err
	}
	for _, p := range pools {
		used[p.Spec.Template.Image] = true
	}
	return used, instantiated(ctx, r.Store, used)
}

// instantiated adds the images that sandboxes and snapshots name.
func instantiated(ctx context.Context, r entity.Reader, used map[string]bool) error {
	sandboxes, _, err := entity.List[sandbox.Sandbox](ctx, r, entity.Query{})
	if err != nil {
		return err
	}
	for _, sb := range sandboxes {
		used[sb.Spec.Template.Image] = true
	}
	snapshots, _, err := entity.List[sandbox.Snapshot](ctx, r, entity.Query{})
	if err != nil {
		return err
	}
	for _, s := range snapshots {
		used[s.Spec.Template.Image] = true
	}
	return nil
}
