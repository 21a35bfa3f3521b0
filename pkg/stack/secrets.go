package stack

import (
	"cmp"
	"path"
	"slices"
	"strings"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
)

// Secret is a build secret: steps of the build read it, and no layer of the image has it. For an app its value is that
// of the environment variable of this name.
type Secret struct {
	ID       string // as in RUN --mount=type=secret,id=ID
	Required bool   // the build fails without a value
}

// secrets completes the plan's build secrets with those of app.toml, and gives them to the steps of a generated
// Dockerfile as environment variables. The steps of the folder's own Dockerfile mount them by themselves.
func (s *source) secrets(p *Plan) {
	names := unique(slices.Clone(s.cfg.Build.Secrets))
	for _, name := range names {
		p.Secrets = addSecret(p.Secrets, Secret{ID: name, Required: true})
	}
	if len(names) > 0 {
		p.because("%s gives the build the secrets %s", s.cfg.File, strings.Join(names, ", "))
	}
	if p.Generated {
		p.Dockerfile = WithSecrets(p.Dockerfile, names)
	}
}

// addSecret adds a secret to a list in which each id is once.
func addSecret(list []Secret, add Secret) []Secret {
	for i := range list {
		if list[i].ID == add.ID {
			list[i].Required = list[i].Required || add.Required
			return list
		}
	}
	return append(list, add)
}

// WithSecrets lets every step of a Dockerfile, except those that install Debian packages, have secrets as environment
// variables.
func WithSecrets(dockerfile string, names []string) string {
	var mounts strings.Builder
	for _, name := range names {
		mounts.WriteString(" --mount=type=secret,id=" + name + ",env=" + name)
	}
	var b strings.Builder
	for line := range strings.Lines(dockerfile) {
		if step, ok := strings.CutPrefix(line, "RUN "); ok && !strings.HasPrefix(step, "apt-get ") {
			line = "RUN" + mounts.String() + " " + step
		}
		b.WriteString(line)
	}
	return b.String()
}

// mounted is the secret of a mount of RUN, as BuildKit names it.
func mounted(m *instructions.Mount) Secret {
	return Secret{ID: cmp.Or(m.Source, m.CacheID, path.Base(m.Target)), Required: m.Required}
}
