// Package images says which images of the image store a project may use. The
// store itself knows no projects, and finds images by their digest alone.
package images

import (
	"context"
	"slices"
	"strings"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// local begins the names of the images that builds make, which no registry has.
// The rest is the id of the app or template, "@" and the digest.
const local = "runtime.local/"

// Name is the name of the images that builds of an app or template make,
// without their digest.
func Name[ID ~string](of ID) string { return local + string(of) }

// BasePrefix begins the names of base images in the image store; NAME:VERSION and the digest follow.
const BasePrefix = local + "base/"

// LabelBase marks a base image in the image store with the digest that it was made as, in hex.
const LabelBase = "dev.miren.runtime/base"

// builtPrefixes begin the names of images that builds make.
var builtPrefixes = []string{local + app.AppKind.Prefix + "-", local + sandbox.TemplateKind.Prefix + "-"}

// Built reports whether an image is one that a build made, by its name.
func Built(image string) bool {
	return slices.ContainsFunc(builtPrefixes, func(p string) bool { return strings.HasPrefix(image, p) })
}

// Check returns an error of class NotFound if the project may not use an image:
// it may use base images, which have no digest in their names, and those that
// its own builds made. Whether an image exists is the image store's to say, by
// the exact name.
func Check(ctx context.Context, r entity.Reader, project schema.ID, image string) error {
	name, _, digest := strings.Cut(image, "@")
	if !digest && !Built(image) {
		return nil
	}
	missing := errs.New(errs.NotFound, "the project has no image %s", image).WithHint("name a base image, or an image of the project as `r template show NAME` prints it")
	if !Built(name) {
		return missing
	}
	kind := sandbox.TemplateKind
	if strings.HasPrefix(name, Name(app.AppKind.Prefix+"-")) {
		kind = app.AppKind
	}
	rec, err := r.Get(ctx, kind.Name, schema.ID(strings.TrimPrefix(name, local)))
	if err != nil && !errs.Is(err, errs.NotFound) {
		return err
	}
	if err != nil || rec.Project != project {
		return missing
	}
	return nil
}
