package baseimage

import (
	"archive/tar"
	"context"
	"os/exec"
	"strings"
)

var pythonPackages = []string{"python3", "python3-pip", "python3-venv"}

// python is the distribution's Python, with the names that Dockerfiles use.
func (s *Store) python(ctx context.Context) (*recipe, error) {
	r, err := s.withPackages("python", "3", pythonPackages)
	if err != nil {
		return nil, err
	}
	if v := s.pythonVersion(ctx); v != "" {
		r.version = v
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

// pythonVersion is "3.11", or empty when the package index does not tell.
func (s *Store) pythonVersion(ctx context.Context) string {
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
