package baseimage

import (
	"archive/tar"
	"context"
	"os/exec"
	"strings"

	"miren.dev/runtime/pkg/errs"
)

var pythonPackages = []string{"python3", "python3-pip", "python3-venv"}

// python is the Python of a release of the distribution, with the names that
// Dockerfiles use. want is "3.12" or a range, "3.10-3.13"; empty: the host's.
func (s *Store) python(ctx context.Context, want, release string) (*recipe, error) {
	host, err := readHost()
	if err != nil {
		return nil, err
	}
	found, err := choosePython(pythons(host, hostPython(ctx)), want, release)
	if err != nil {
		return nil, err
	}
	r, err := s.withPackages("python", found.version, found.codename, pythonPackages)
	if err != nil {
		return nil, err
	}
	r.cmd = []string{"python3"}
	r.inputs = append(r.inputs, "links")
	packages := r.make
	r.make = func(ctx context.Context, b *builder) error {
		if err := packages(ctx, b); err != nil {
			return err
		}
		return b.layer(func(tw *tar.Writer) error {
			for _, l := range [][2]string{{"usr/local/bin/python", "/usr/bin/python3"}, {"usr/local/bin/pip", "/usr/bin/pip3"}} {
				if err := putLink(tw, l[0], l[1]); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return r, nil
}

// python is a version of Python and the release that has packages of it.
type python struct{ version, codename string }

// pythons are those that the host's sources have: the host's own first, then the newest.
func pythons(h *host, own string) []python {
	var list []python
	for i := len(releases) - 1; i >= 0; i-- {
		r := releases[i]
		switch {
		case r.id != h.id:
		case r.codename == h.codename:
			if own == "" {
				own = r.python
			}
		default:
			list = append(list, python{r.python, r.codename})
		}
	}
	if own == "" {
		own = "3"
	}
	return append([]python{{own, h.codename}}, list...)
}

// choosePython returns the first version that want selects.
func choosePython(list []python, want, release string) (python, error) {
	low, high, isRange := strings.Cut(want, "-")
	var have []string
	for _, p := range list {
		have = append(have, p.version)
		if release != "" && release != p.codename {
			continue
		}
		switch {
		case want == "", covers(want, p.version), strings.HasPrefix(want, p.version+"."):
			return p, nil
		case isRange && compareVersions(p.version, low) >= 0 && (high == "" || compareVersions(p.version, high) <= 0):
			return p, nil
		}
	}
	what := "Python " + want
	if release != "" {
		what += " of " + release
	}
	return python{}, errs.New(errs.NotFound, "%s cannot be had on this machine, which has packages of Python %s", what, strings.Join(have, " and ")).
		WithHint("ask for one of these (FROM in the Dockerfile; .python-version, requires-python or build.version without one), or let the server reach a registry")
}

// hostPython returns a version such as "3.11", or "" when the package index
// does not have it.
func hostPython(ctx context.Context) string {
	out, err := exec.CommandContext(ctx, "apt-cache", "show", "--no-all-versions", "python3").Output()
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(out)) {
		if v, ok := strings.CutPrefix(line, "Version: "); ok {
			f := strings.FieldsFunc(v, func(r rune) bool { return r == '.' || r == '-' || r == '+' })
			if len(f) >= 2 {
				return f[0] + "." + f[1]
			}
		}
	}
	return ""
}
