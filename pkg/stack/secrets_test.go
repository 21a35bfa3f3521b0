package stack

import (
	"slices"
	"strings"
	"testing"

	"miren.dev/runtime/pkg/errs"
)

func TestSecretsOfGeneratedDockerfile(t *testing.T) {
	const files = "-- app.toml --\n[build]\nsecrets = [\"NPM_TOKEN\", \"OTHER\", \"NPM_TOKEN\"]\npackages = [\"git\"]\n" +
		"-- package.json --\n{\"scripts\": {\"build\": \"x\", \"start\": \"node y\"}, \"dependencies\": {\"a\": \"1\"}}\n-- package-lock.json --\n{}\n"
	p, err := detect(t, files)
	if err != nil {
		t.Fatal(err)
	}
	if want := []Secret{{"NPM_TOKEN", true}, {"OTHER", true}}; !slices.Equal(p.Secrets, want) {
		t.Errorf("secrets %+v", p.Secrets)
	}
	const mounts = "RUN --mount=type=secret,id=NPM_TOKEN,env=NPM_TOKEN --mount=type=secret,id=OTHER,env=OTHER "
	steps := 0
	for line := range strings.Lines(p.Dockerfile) {
		if !strings.HasPrefix(line, "RUN ") || strings.HasPrefix(line, "RUN apt-get ") {
			continue
		}
		steps++
		if !strings.HasPrefix(line, mounts) || strings.Count(line, "type=secret") != 2 {
			t.Errorf("a step has not the secrets: %s", line)
		}
	}
	if steps < 2 || !strings.Contains(p.Dockerfile, "RUN apt-get ") {
		t.Errorf("%d steps in:\n%s", steps, p.Dockerfile)
	}
	// The Dockerfile as a file of the folder asks for the same.
	d, err := parseDockerfile(p.Standalone(), nil, "")
	if err != nil || len(d.secrets) != 2 || !slices.Equal(d.bases, p.Bases) {
		t.Errorf("%+v, %v", d, err)
	}
}

func TestSecretsOfDockerfile(t *testing.T) {
	p, err := detect(t, `-- app.toml --
build.secrets = ["LISTED", "optional"]
build.target = "last"
-- Dockerfile --
FROM debian AS first
RUN --mount=type=secret,id=npm-token,target=/root/.npmrc --mount=type=cache,target=/x true
RUN --mount=type=secret,id=needed,required=true,env=NEEDED true
RUN --mount=type=secret,target=/run/by-target --mount=type=secret,source=by-source,target=/y true
FROM first AS last
RUN --mount=type=secret,id=optional true
FROM last
RUN --mount=type=secret,id=not-built true
`)
	if err != nil {
		t.Fatal(err)
	}
	want := []Secret{{"npm-token", false}, {"needed", true}, {"by-target", false}, {"by-source", false}, {"optional", true}, {"LISTED", true}}
	if !slices.Equal(p.Secrets, want) {
		t.Errorf("secrets %+v", p.Secrets)
	}
	if strings.Contains(p.Dockerfile, "LISTED") || !slices.Equal(p.Bases, []string{"debian"}) {
		t.Errorf("bases %q of\n%s", p.Bases, p.Dockerfile)
	}
}

func TestSecretsAreForStepsOnly(t *testing.T) {
	_, err := detect(t, "-- app.toml --\n[build]\nsecrets = [\"X\"]\n-- index.html --\nhi\n")
	if !errs.Is(err, errs.InvalidArgument) || !strings.Contains(err.Error(), "build.secrets means nothing to the stack static") {
		t.Error(err)
	}
	if p, err := detect(t, "-- package.json --\n{\"main\": \"i.js\"}\n-- i.js --\n"); err != nil || len(p.Secrets) != 0 || strings.Contains(p.Dockerfile, "type=secret") {
		t.Errorf("%+v, %v", p, err)
	}
}
