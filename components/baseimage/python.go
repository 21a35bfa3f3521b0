package baseimage

import (
	"archive/tar"
	"context"
)

var pythonLanguage = language{title: "Python", of: func(v languageVersions) string { return v.python },
	files: ".python-version, requires-python"}

var pythonPackages = []string{"python3", "python3-pip", "python3-venv"}

// python is the Python of a release of the distribution, with the names that
// Dockerfiles use. want is "3.12" or a range, "3.10-3.13"; empty: the host's.
func (s *Store) python(ctx context.Context, want, release string) (*recipe, error) {
	host, err := readHost()
	if err != nil {
		return nil, err
	}
	found, err := choose(pythonLanguage, offers(pythonLanguage, host, hostVersion(ctx, "python3")), want, release)
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
