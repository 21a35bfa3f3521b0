package build

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/content"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/domain/images"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// template creates a version of a template of a project, which has an image.
func (f *fixture) template(project schema.ID) (v *sandbox.TemplateVersion, image string) {
	f.Helper()
	t := sandbox.NewTemplate()
	t.Project, t.Name = project, "shop"
	f.create(t)
	v = sandbox.NewTemplateVersion()
	v.Project, v.Spec.Template, v.Spec.Number = project, t.GetID(), 1
	f.create(v)
	return v, images.Name(t.ID) + "@sha256:" + strings.Repeat("1", 64)
}

// ofTemplate runs the build of a version to its end.
func (f *fixture) ofTemplate(v *sandbox.TemplateVersion, phase app.BuildPhase, describe func(*app.BuildSpec)) *app.Build {
	f.Helper()
	f.do = func(context.Context, int64) error { return nil }
	r := f.reconciler()
	r.Sealer = f.sealer
	r.Image = func(_ context.Context, name string) (string, error) { return "store/" + name, nil }
	r.Content = func(_ context.Context, image string) (content.Store, error) {
		if !strings.HasSuffix(image, strings.Repeat("1", 64)) {
			return nil, errs.New(errs.NotFound, "image %s", image)
		}
		return nil, nil
	}
	b := app.NewBuild()
	b.Project, b.Spec.TemplateVersion = v.Project, v.GetID()
	describe(&b.Spec)
	f.create(b)
	f.reconcile(r, b)
	b = f.phase(b, phase)
	r.Stop()
	return b
}

func TestTemplateOfADockerfile(t *testing.T) {
	f := setup(t)
	v, image := f.template(f.app.Project)
	f.files = map[string]string{"Dockerfile.dev": "FROM " + image + "\nCOPY --from=debian /a /b\n"}
	b := f.ofTemplate(v, app.BuildPhaseSucceeded, func(s *app.BuildSpec) { s.Source, s.Dockerfile = "src", "Dockerfile.dev" })
	req := f.asked.Load()
	if b.Status.Image == "" || req.Dockerfile != f.files["Dockerfile.dev"] || req.ImageName != images.Name(v.Spec.Template) || req.CacheScope != string(v.Project) {
		t.Errorf("%+v; %+v", b.Status, req)
	}
	if len(req.Bases) != 2 || req.Bases[image].Digest != "sha256:"+strings.Repeat("1", 64) || req.Bases["debian"].Dir != "/base" {
		t.Errorf("bases %+v", req.Bases)
	}
}

func TestTemplateOfInstructions(t *testing.T) {
	f := setup(t)
	v, _ := f.template(f.app.Project)
	b := f.ofTemplate(v, app.BuildPhaseSucceeded, func(s *app.BuildSpec) { s.Instructions = "FROM debian\n" })
	if req := f.asked.Load(); b.Status.Image == "" || req.Dockerfile != "FROM debian\n" {
		t.Errorf("%+v; %+v", b.Status, req)
	}
}

// TestTemplateSecrets: the steps of a template read its build secrets; those of a Dockerfile mount them by themselves.
func TestTemplateSecrets(t *testing.T) {
	f := setup(t)
	v, _ := f.template(f.app.Project)
	sealer := schema.NewSealer(filepath.Join(t.TempDir(), "key"))
	sealed, err := sealer.Seal("s3cret")
	if err != nil {
		t.Fatal(err)
	}
	f.sealer = sealer
	f.ofTemplate(v, app.BuildPhaseSucceeded, func(s *app.BuildSpec) {
		s.Instructions, s.Secrets = "FROM debian\nRUN [\"a\"]\n", map[string]schema.Secret{"PIP_TOKEN": sealed}
	})
	req := f.asked.Load()
	if !strings.Contains(req.Dockerfile, "RUN --mount=type=secret,id=PIP_TOKEN,env=PIP_TOKEN [") || req.Secrets["PIP_TOKEN"] != "s3cret" {
		t.Errorf("the builder got %q with\n%s", req.Secrets, req.Dockerfile)
	}

	f.dockerfile = "FROM debian\nRUN --mount=type=secret,id=npm-token,required x\n"
	b := f.ofTemplate(v, app.BuildPhaseFailed, func(s *app.BuildSpec) { s.Source, s.Dockerfile = "src", "Dockerfile" })
	if !strings.Contains(b.Status.Message, "npm-token") || !strings.Contains(b.Status.Hint, "--secret NPM_TOKEN") {
		t.Errorf("message %q, hint %q", b.Status.Message, b.Status.Hint)
	}
	b = f.ofTemplate(v, app.BuildPhaseSucceeded, func(s *app.BuildSpec) {
		s.Source, s.Dockerfile, s.Secrets = "src", "Dockerfile", map[string]schema.Secret{"NPM_TOKEN": sealed, "OTHER": sealed}
	})
	if req := f.asked.Load(); len(req.Secrets) != 1 || req.Secrets["npm-token"] != "s3cret" {
		t.Errorf("the builder got %q", req.Secrets)
	}
	if text := f.log(b); strings.Contains(text, "s3cret") || !strings.Contains(text, "no step mounts the build secret OTHER") {
		t.Errorf("log:\n%s", text)
	}
}

func TestTemplateOfAnImage(t *testing.T) {
	f := setup(t)
	v, image := f.template(f.app.Project)
	for name, want := range map[string]string{"debian": "store/debian", image: image} {
		b := f.ofTemplate(v, app.BuildPhaseSucceeded, func(s *app.BuildSpec) { s.Image = name })
		if b.Status.Image != want || f.calls.Load() != 0 {
			t.Errorf("%s: %+v, %d builds", name, b.Status, f.calls.Load())
		}
	}
}

// A template cannot be made of images of other projects, nor of files outside of
// its source.
func TestTemplateRefusals(t *testing.T) {
	f := setup(t)
	v, own := f.template(f.app.Project)
	other := core.NewProject()
	other.Name = "other"
	f.create(other)
	_, theirs := f.template(other.ID)
	digest := theirs[strings.Index(theirs, "@"):]
	outside := filepath.Join(t.TempDir(), "Dockerfile")
	if err := os.WriteFile(outside, []byte("FROM secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]struct {
		spec   app.BuildSpec
		reason app.FailureReason
		says   string
	}{
		"image of another project":         {app.BuildSpec{Image: theirs}, app.FailureReasonImage, "project has no image"},
		"its digest under a name":          {app.BuildSpec{Image: "debian" + digest}, app.FailureReasonImage, "project has no image"},
		"its digest under an unknown name": {app.BuildSpec{Image: images.Name("tpl-unknown") + digest}, app.FailureReasonImage, "project has no image"},
		"FROM another project":             {app.BuildSpec{Instructions: "FROM " + theirs + "\n"}, app.FailureReasonImage, "project has no image"},
		"COPY --from another project":      {app.BuildSpec{Instructions: "FROM debian\nCOPY --from=" + theirs + " /a /a\n"}, app.FailureReasonImage, "project has no image"},
		"an image that was deleted":        {app.BuildSpec{Instructions: "FROM " + strings.ReplaceAll(own, "1", "2") + "\n"}, app.FailureReasonImage, "image"},
		"a Dockerfile outside":             {app.BuildSpec{Source: "src", Dockerfile: "../../Dockerfile"}, app.FailureReasonSource, "Dockerfile"},
		"a link to one":                    {app.BuildSpec{Source: "src", Dockerfile: "link"}, app.FailureReasonSource, "Dockerfile"},
		"no Dockerfile":                    {app.BuildSpec{Source: "src", Dockerfile: "Dockerfile.dev"}, app.FailureReasonSource, "the source has no Dockerfile.dev"},
		"a Dockerfile without FROM":        {app.BuildSpec{Instructions: "RUN true\n"}, app.FailureReasonPlan, "Dockerfile"},
	} {
		t.Run(what, func(t *testing.T) {
			f.T = t
			f.links = map[string]string{"link": outside}
			b := f.ofTemplate(v, app.BuildPhaseFailed, func(s *app.BuildSpec) { *s = c.spec; s.TemplateVersion = v.GetID() })
			if b.Status.Reason != c.reason || !strings.Contains(b.Status.Message, c.says) || f.calls.Load() != 0 {
				t.Errorf("%s %q, %d calls of the builder", b.Status.Reason, b.Status.Message, f.calls.Load())
			}
		})
	}
}
