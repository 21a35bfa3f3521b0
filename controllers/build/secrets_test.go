package build

import (
	"context"
	"maps"
	"path/filepath"
	"strings"
	"testing"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/buildlog"
	"miren.dev/runtime/pkg/schema"
)

// TestSecrets: a build gets the values of the secrets that the source names, from the variables of its app.
func TestSecrets(t *testing.T) {
	f := setup(t)
	f.do = func(context.Context, int64) error { return nil }
	f.files = map[string]string{"app.toml": "[build]\nsecrets = [\"NPM_TOKEN\", \"INDEX\"]\n"}
	f.dockerfile = "FROM scratch\nRUN --mount=type=secret,id=git-token x\nRUN --mount=type=secret,id=optional x\nCMD [\"/x\"]\n"
	sealer := schema.NewSealer(filepath.Join(t.TempDir(), "key"))
	r := f.reconciler()
	r.Sealer = sealer

	b := f.build()
	f.reconcile(r, b)
	b = f.phase(b, app.BuildPhaseFailed)
	if !strings.Contains(b.Status.Message, "INDEX, NPM_TOKEN") || !strings.Contains(b.Status.Hint, "r app env set --secret INDEX") {
		t.Errorf("message %q, hint %q", b.Status.Message, b.Status.Hint)
	}
	if f.calls.Load() != 0 {
		t.Error("it was built without its secrets")
	}

	sealed := map[string]schema.Secret{}
	for k, v := range map[string]string{"NPM_TOKEN": "npm_s3cret", "GIT_TOKEN": "ghp_s3cret", "UNRELATED": "not for builds"} {
		s, err := sealer.Seal(v)
		if err != nil {
			t.Fatal(err)
		}
		sealed[k] = s
	}
	if _, err := entity.ModifySpec(t.Context(), f.store, f.app.ID, func(a *app.App) error {
		a.Spec.Secrets, a.Spec.Env = sealed, map[string]string{"INDEX": "https://packages.example.com/simple"}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	b = f.build()
	f.reconcile(r, b)
	b = f.phase(b, app.BuildPhaseSucceeded)
	want := map[string]string{"NPM_TOKEN": "npm_s3cret", "INDEX": "https://packages.example.com/simple", "git-token": "ghp_s3cret"}
	if got := f.asked.Load().Secrets; !maps.Equal(got, want) {
		t.Errorf("the builder got %q", got)
	}
	if text := f.log(b); strings.Contains(text, "s3cret") || !strings.Contains(text, "build secrets: INDEX, NPM_TOKEN, git-token") || !strings.Contains(text, "no variable for the build secret optional") {
		t.Errorf("log:\n%s", text)
	}
}

// log returns the text of the log of a build.
func (f *fixture) log(b *app.Build) string {
	f.Helper()
	var log strings.Builder
	if err := f.logs.Read(f.Context(), string(b.ID), 0, false, func(e buildlog.Event, _ int64) error {
		log.WriteString(e.Text + "\n")
		return nil
	}); err != nil {
		f.Fatal(err)
	}
	return log.String()
}
