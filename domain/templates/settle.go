package templates

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/domain/projects"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/informer"
	"miren.dev/runtime/pkg/errs"
)

// Settle records the end of the build of a version: its image, tags and
// selection, or its failure, in one transaction. The same transaction deletes
// the oldest versions beyond Keep. It does nothing if the version is not being
// built, or its build has not ended.
func (s *Service) Settle(ctx context.Context, v *sandbox.TemplateVersion) error {
	if v.Status.Phase != sandbox.TemplatePhaseBuilding {
		return nil
	}
	builds, err := Builds(ctx, s.Store, v)
	if err != nil {
		return err
	}
	t, err := entity.Get[sandbox.Template](ctx, s.Store, v.Spec.Template)
	if err != nil {
		return err
	}
	failed := func(message string) { v.Status.Phase, v.Status.Message = sandbox.TemplatePhaseFailed, message }
	if len(builds) == 0 {
		failed("its build was deleted")
	} else {
		b := builds[0]
		switch b.Status.Phase {
		case app.BuildPhaseFailed:
			failed(b.Status.Message)
		case app.BuildPhaseCanceled:
			failed("its build was canceled")
		case app.BuildPhaseSucceeded:
			v.Status.Bytes, err = s.size(ctx, b.Status.Image)
			switch {
			case errs.Is(err, errs.NotFound):
				failed("its image is gone: " + err.Error())
			case err != nil:
				return errs.Wrap(err, "size of the image")
			default:
				v.Status.Phase, v.Status.Image, v.Status.Message = sandbox.TemplatePhaseReady, b.Status.Image, setTags(t, v)
			}
		default:
			return nil
		}
	}
	versions, err := s.Versions(ctx, t)
	if err != nil {
		return err
	}
	if i := slices.IndexFunc(versions, func(o *sandbox.TemplateVersion) bool { return o.ID == v.ID }); i >= 0 {
		versions[i] = v
	}
	choose(t, versions)
	var ops operations
	ops.add(entity.UpdateStatusOp(v))
	ops.add(entity.UpdateSpecOp(t))
	ops.add(entity.UpdateStatusOp(t))
	for _, old := range surplus(t, versions, v, s.Keep) {
		ops.add(entity.DeleteOp(old))
	}
	return ops.write(ctx, s.Store)
}

// setTags sets the tags that a version gets when it is built. It returns a
// message about those that the template has no room for.
func setTags(t *sandbox.Template, v *sandbox.TemplateVersion) (message string) {
	tags := v.Spec.Tags
	if len(tags) == 0 {
		tags = []string{TagLatest}
	}
	for _, tag := range tags {
		if t.Spec.Tags[tag] >= v.Spec.Number { // a later version has it
			continue
		}
		if err := setTag(t, tag, v.Spec.Number); err != nil {
			message = fmt.Sprintf("tag %s is not set: %v", tag, err)
		}
	}
	return message
}

// setTag gives a tag to a version. ResourceExhausted if t has as many tags as
// possible.
func setTag(t *sandbox.Template, tag string, number int64) error {
	if _, ok := t.Spec.Tags[tag]; !ok && len(t.Spec.Tags) >= sandbox.MaxTemplateTags {
		return errs.New(errs.ResourceExhausted, "template %s has %d tags already", t.Name, len(t.Spec.Tags)).
			WithHint("remove some: `r template tag --remove %s TAG`", t.Name)
	}
	tags := maps.Clone(t.Spec.Tags)
	if tags == nil {
		tags = map[string]int64{}
	}
	tags[tag] = number
	t.Spec.Tags = tags
	return nil
}

// surplus returns the versions beyond the newest keep that no tag, name or
// build under way needs. keep 0: none are surplus. v, whose build has just ended,
// stays.
func surplus(t *sandbox.Template, versions []*sandbox.TemplateVersion, v *sandbox.TemplateVersion, keep int) []*sandbox.TemplateVersion {
	needed := map[int64]bool{v.Spec.Number: true}
	for _, n := range t.Spec.Tags {
		needed[n] = true
	}
	var old []*sandbox.TemplateVersion
	for i, o := range versions {
		if keep > 0 && i >= keep && !needed[o.Spec.Number] && o.GetID() != t.Status.Version && o.Status.Phase != sandbox.TemplatePhaseBuilding {
			old = append(old, o)
		}
	}
	return old
}

// Wait waits until the version that name selects is built, or its build failed.
func (s *Service) Wait(ctx context.Context, project, name string) error {
	pid, err := projects.Find(ctx, s.Store, project)
	if err != nil {
		return err
	}
	_, v, err := s.Describe(ctx, pid, name)
	if err != nil || v == nil {
		return err
	}
	_, err = informer.Of[sandbox.TemplateVersion](s.Informers).Await(ctx, v.ID, func(v *sandbox.TemplateVersion) (bool, error) {
		return v.Status.Phase != sandbox.TemplatePhaseBuilding, nil
	})
	return err
}

// Builds lists the builds of a version.
func Builds(ctx context.Context, r entity.Reader, v *sandbox.TemplateVersion) ([]*app.Build, error) {
	list, _, err := entity.List[app.Build](ctx, r, entity.Where(app.BuildAttrTemplateVersion, v.ID))
	return list, err
}

// choose sets the version that the name of t alone selects: that of the tag
// latest, or the newest that can be used. versions are all, newest first.
func choose(t *sandbox.Template, versions []*sandbox.TemplateVersion) {
	t.Status.Version = ""
	for _, v := range versions {
		if !usable(v) {
			continue
		}
		if t.Status.Version == "" || v.Spec.Number == t.Spec.Tags[TagLatest] {
			t.Status.Version = v.GetID()
		}
	}
}

// usable reports whether sandboxes can be made of a version: its image exists,
// or the first sandbox makes it.
func usable(v *sandbox.TemplateVersion) bool {
	return v.Spec.Base != "" || v.Status.Phase == sandbox.TemplatePhaseReady
}

// unusable is the error for a version that is not usable.
func unusable(v *sandbox.TemplateVersion) error {
	if v.Status.Phase == sandbox.TemplatePhaseBuilding {
		return errs.New(errs.FailedPrecondition, "version %d of the template is being built", v.Spec.Number).
			WithHint("`r template logs` follows its build")
	}
	return errs.New(errs.FailedPrecondition, "version %d of the template was not built: %s", v.Spec.Number, strings.SplitN(v.Status.Message, "\n", 2)[0]).
		WithHint("`r template logs` prints the log of its build")
}
