package templates

import (
	"cmp"
	"context"
	"errors"
	"path"
	"regexp"
	"slices"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/domain/languages"
	"miren.dev/runtime/domain/projects"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/pkg/source"
	"miren.dev/runtime/pkg/stack"
)

// TagLatest is the tag that the name of a template alone selects.
const TagLatest = "latest"

// BuildRequest describes a version of a template. It is made of one of
// Dockerfile, Steps and Image.
type BuildRequest struct {
	New        bool              // AlreadyExists if the template exists
	Labels     map[string]string // of the version
	Title      string
	Source     source.Digest // of the files; "": none
	Dockerfile string        // path in the source
	Steps      []sandbox.BuildStep
	Image      string // a name that Resolve understands
	NoCache    bool
	Secrets    map[string]string // of the build; sealed before they are stored

	Tags    []string // that it gets when it is built; none: TagLatest
	Aliases []string // more names of the template
	Start   []string
	Ready   *Ready
	Env     map[string]string
	User    string
	Workdir string
	// Capabilities of the programs of its sandboxes; "": none.
	Capabilities sandbox.CapabilitySet
	// Limits of its sandboxes; 0: the default.
	CPUMillis, MemoryBytes, DiskBytes int64
}

// Built is a template, a version of it and the version's build.
type Built struct {
	Template *sandbox.Template
	Version  *sandbox.TemplateVersion
	Build    *app.Build
}

// Build accepts the build of a new version of a template, which it creates if
// necessary: template, version and build together, or nothing. Controllers do
// the rest; the version can be selected when it is ready. Errors:
// InvalidArgument for names and steps that are not possible, AlreadyExists for a
// name that belongs to another template, FailedPrecondition if a part of the
// source was not uploaded.
func (s *Service) Build(ctx context.Context, project, name string, req BuildRequest) (*Built, error) {
	if err := req.check(name); err != nil {
		return nil, err
	}
	if project == System {
		return nil, errs.New(errs.FailedPrecondition, "the templates of project %s come with the system, which alone changes them", System).
			WithHint("build it in another project: --project NAME")
	}
	pid, err := projects.Find(ctx, s.Store, project)
	if err != nil {
		return nil, err
	}
	b, err := s.buildOf(ctx, pid, &req)
	if err != nil {
		return nil, err
	}
	probe, err := req.Ready.probe(req.Start)
	if err != nil {
		return nil, err
	}
	v := sandbox.NewTemplateVersion()
	v.Project, v.Labels, v.Status.Phase = pid, req.Labels, sandbox.TemplatePhaseBuilding
	v.Spec.Tags, v.Spec.Start, v.Spec.Ready = req.Tags, req.Start, probe
	v.Spec.Env, v.Spec.User, v.Spec.Workdir = req.Env, req.User, req.Workdir
	v.Spec.Capabilities = cmp.Or(req.Capabilities, v.Spec.Capabilities)
	r := &v.Spec.Resources
	for to, n := range map[*int64]int64{&r.CPUMillis: req.CPUMillis, &r.MemoryBytes: req.MemoryBytes, &r.DiskBytes: req.DiskBytes} {
		if n != 0 {
			*to = n
		}
	}
	var out *Built
	err = entity.Retry(ctx, func() error {
		t, err := s.forBuild(ctx, pid, name, &req)
		if err != nil {
			return err
		}
		out = &Built{Template: t, Version: schema.Copy(v), Build: schema.Copy(b)}
		return s.accept(ctx, out)
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// check returns InvalidArgument for names, and descriptions of sandboxes, that
// are not possible.
func (req *BuildRequest) check(name string) error {
	for what, list := range map[string][]string{"name": {name}, "tag": req.Tags, "alias": req.Aliases} {
		if len(list) > sandbox.MaxTemplateTags {
			return errs.New(errs.InvalidArgument, "%s: %d are given, at most %d are possible", what, len(list), sandbox.MaxTemplateTags)
		}
		for _, n := range list {
			if err := checkName(what, n); err != nil {
				return err
			}
		}
	}
	err := errors.Join(sandbox.CheckEnv("env", req.Env), sandbox.CheckCommand(req.Start))
	if req.Ready != nil {
		err = errors.Join(err, sandbox.CheckCommand(req.Ready.Command))
	}
	if err != nil {
		return errs.New(errs.InvalidArgument, "%w", err)
	}
	if req.User != "" {
		if err := word("user", req.User); err != nil {
			return err
		}
	}
	if req.Workdir != "" && (plain(req.Workdir) != nil || !path.IsAbs(req.Workdir)) {
		return errs.New(errs.InvalidArgument, "workdir %q is not an absolute path of plain characters", req.Workdir)
	}
	return nil
}

var (
	templateName = regexp.MustCompile(sandbox.TemplateNamePattern)
	// number is the form of a selector that is the number of a version.
	number = regexp.MustCompile(`^v?[0-9]+$`)
)

func checkName(what, n string) error {
	if !templateName.MatchString(n) || len(n) > sandbox.MaxTemplateName {
		return errs.New(errs.InvalidArgument, "%s %q of a template: lower-case letters, digits, '.', '_' and '-', at most %d", what, n, sandbox.MaxTemplateName)
	}
	if what == "tag" && number.MatchString(n) {
		return errs.New(errs.InvalidArgument, "tag %q of a template would hide the version with that number", n)
	}
	return nil
}

// buildOf returns the build that a request describes.
func (s *Service) buildOf(ctx context.Context, project schema.ID, req *BuildRequest) (*app.Build, error) {
	b := app.NewBuild()
	b.Project, b.Spec.NoCache = project, req.NoCache
	forms := 0
	for _, given := range []bool{req.Dockerfile != "", len(req.Steps) > 0, req.Image != ""} {
		if given {
			forms++
		}
	}
	if forms != 1 {
		return nil, errs.New(errs.InvalidArgument, "a template is made of a Dockerfile, of steps or of an image: exactly one of them")
	}
	if req.Image != "" {
		if len(req.Secrets) > 0 {
			return nil, errs.New(errs.InvalidArgument, "a template of an image has no build that could read secrets")
		}
		b.Spec.Image = req.Image
		return b, nil
	}
	if err := s.sealSecrets(b, req.Secrets); err != nil {
		return nil, err
	}
	if req.Source != "" {
		if err := s.Sources.CheckUploaded(req.Source); err != nil {
			return nil, err
		}
		b.Spec.Source = string(req.Source)
	}
	if req.Dockerfile != "" {
		if req.Source == "" {
			return nil, errs.New(errs.InvalidArgument, "a Dockerfile needs the source that it is in")
		}
		b.Spec.Dockerfile = path.Clean(req.Dockerfile)
		return b, nil
	}
	var err error
	b.Spec.Instructions, err = dockerfile(req.Steps, func(name string) (*sandbox.TemplateVersion, error) {
		_, v, err := s.Find(ctx, project, name)
		return v, err
	})
	if err != nil {
		return nil, err
	}
	if _, _, err := stack.Inputs(b.Spec.Instructions); err != nil { // such as a line that is too long
		return nil, errs.New(errs.InvalidArgument, "steps: %w", err)
	}
	return b, nil
}

// sealSecrets gives a build its secrets. InvalidArgument if they are too many, or have no valid names.
func (s *Service) sealSecrets(b *app.Build, values map[string]string) error {
	if len(values) == 0 {
		return nil
	}
	if err := sandbox.CheckEnv("secrets", values); err != nil {
		return errs.New(errs.InvalidArgument, "%w", err)
	}
	b.Spec.Secrets = map[string]schema.Secret{}
	for name, value := range values {
		if !envName.MatchString(name) { // steps have it as a variable
			return errs.New(errs.InvalidArgument, "the name of build secret %q is not that of a variable: letters, digits and _, not a digit first", name)
		}
		sealed, err := s.Sealer.Seal(value)
		if err != nil {
			return errs.Wrap(err, "seal the build secret %s", name)
		}
		b.Spec.Secrets[name] = sealed
	}
	return nil
}

// forBuild returns the template that a version is built for, which may be new,
// with what the request says about it.
func (s *Service) forBuild(ctx context.Context, project schema.ID, name string, req *BuildRequest) (*sandbox.Template, error) {
	t, err := entity.ByName[sandbox.Template](ctx, s.Store, project, name)
	if errs.Is(err, errs.NotFound) {
		t = sandbox.NewTemplate()
		t.Project, t.Name = project, name
		err = s.checkFree(ctx, project, name)
	} else if err == nil && req.New {
		err = errs.New(errs.AlreadyExists, "template %s exists already", name).WithHint("build a new version of it, or choose another name")
	}
	if err != nil {
		return nil, err
	}
	for _, a := range req.Aliases {
		if err := s.addAlias(ctx, t, a); err != nil {
			return nil, err
		}
	}
	if req.Title != "" {
		t.Spec.Title = req.Title
	}
	return t, nil
}

// checkFree fails if a name belongs to a template already: of the project, or
// one that comes with the system.
func (s *Service) checkFree(ctx context.Context, project schema.ID, name string) error {
	if slices.ContainsFunc(languages.Templates(), func(t languages.Template) bool { return t.Name == name }) {
		return errs.New(errs.AlreadyExists, "template %s comes with the system", name).WithHint("choose another name, such as my-%s", name)
	}
	all, err := s.List(ctx, project)
	if err != nil {
		return err
	}
	for _, t := range all {
		if t.Name == name || slices.Contains(t.Spec.Aliases, name) {
			return errs.New(errs.AlreadyExists, "%s is template %s already", name, t.Name).WithHint("choose another name")
		}
	}
	return nil
}

// accept writes a template, a version and a build, conditional on the template.
func (s *Service) accept(ctx context.Context, b *Built) error {
	t := b.Template
	exists := t.Revision != 0
	if !exists {
		t.ID = schema.NewID(sandbox.TemplateKind.Prefix)
	}
	b.Version.ID, b.Build.ID = schema.NewID(sandbox.TemplateVersionKind.Prefix), schema.NewID(app.BuildKind.Prefix)
	t.Status.Number++
	b.Version.Spec.Template, b.Version.Spec.Number = t.GetID(), t.Status.Number
	b.Build.Spec.TemplateVersion = b.Version.GetID()
	var ops operations
	if exists {
		ops.add(entity.UpdateSpecOp(t))
		ops.add(entity.UpdateStatusOp(t))
	} else {
		ops.add(entity.CreateOp(t))
	}
	ops.add(entity.CreateOp(b.Version))
	ops.add(entity.CreateOp(b.Build))
	err := ops.write(ctx, s.Store, t, b.Version, b.Build)
	if errs.Is(err, errs.AlreadyExists) { // another request was quicker
		return errs.New(errs.Conflict, "another writer made template %s", t.Name)
	}
	return err
}

// operations are written together.
type operations struct {
	ops []entity.Op
	err error
}

func (o *operations) add(op entity.Op, err error) {
	o.ops = append(o.ops, op)
	if o.err == nil {
		o.err = err
	}
}

// write applies the operations. The objects are those of them whose metadata
// the caller needs as it was written.
func (o *operations) write(ctx context.Context, s entity.Store, objects ...schema.Object) error {
	if o.err != nil {
		return o.err
	}
	res, err := s.Txn(ctx, entity.TxnRequest{Ops: o.ops})
	for _, obj := range objects {
		for i := range res.Records {
			if m := obj.GetMeta(); res.Records[i].ID == m.ID {
				*m = res.Records[i].Meta
			}
		}
	}
	return entity.AsConflict(err)
}
