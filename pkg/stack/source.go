package stack

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"

	"miren.dev/runtime/pkg/appconfig"
	"miren.dev/runtime/pkg/errs"
)

// maxRead bounds what is read of one file of the source.
const maxRead = 4 << 20

// source is a folder with its configuration.
type source struct {
	fs.FS
	cfg *appconfig.Config
}

func ptr[T any](v T) *T { return &v }

// first returns the first of the names that is a file; empty for none.
func (s *source) first(names ...string) string {
	for _, n := range names {
		if s.has(n) {
			return n
		}
	}
	return ""
}

// there are those of the names that are files.
func (s *source) there(names ...string) []string {
	return slices.DeleteFunc(names, func(n string) bool { return !s.has(n) })
}

// isDir says whether there is a folder of that name.
func (s *source) isDir(name string) bool {
	info, err := fs.Stat(s, name)
	return err == nil && info.IsDir()
}

// glob returns the files that match a pattern, sorted.
func (s *source) glob(pattern string) []string {
	found, _ := fs.Glob(s, pattern) // fails for a malformed pattern only
	return slices.DeleteFunc(found, func(name string) bool { return !s.has(name) })
}

// mentions says whether a file can be read and has a text.
func (s *source) mentions(file, text string) bool {
	body, err := s.read(file)
	return err == nil && strings.Contains(body, text)
}

// danglingLinks are the links of a folder that lead nowhere. COPY with --exclude fails at one.
func (s *source) danglingLinks(dir string) []string {
	entries, err := fs.ReadDir(s, dir)
	if err != nil {
		return nil
	}
	var names []string
	for _, e := range entries {
		if e.Type()&fs.ModeSymlink == 0 {
			continue
		}
		if _, err := fs.Stat(s, path.Join(dir, e.Name())); err != nil {
			names = append(names, e.Name())
		}
	}
	return names
}

// has says whether there is a file of that name.
func (s *source) has(name string) bool {
	info, err := fs.Stat(s, name)
	return err == nil && info.Mode().IsRegular()
}

// read returns the text of a file.
func (s *source) read(name string) (string, error) {
	f, err := s.Open(name)
	if err != nil {
		return "", errs.New(errs.InvalidArgument, "read %s: %w", name, err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxRead+1))
	if err != nil {
		return "", errs.New(errs.Unavailable, "read %s: %w", name, err)
	}
	if len(b) > maxRead {
		return "", errs.New(errs.InvalidArgument, "%s is larger than %d bytes", name, maxRead)
	}
	return string(b), nil
}

// jsonError says in which line of a file its JSON is wrong.
func jsonError(file, text string, err error) *errs.Error {
	at := int64(-1)
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syntax):
		at = syntax.Offset
	case errors.As(err, &kind):
		at = kind.Offset
	default:
		return errs.New(errs.InvalidArgument, "%s: %w", file, err)
	}
	return errs.New(errs.InvalidArgument, "%s:%d: %w", file, 1+strings.Count(text[:min(int(at), len(text))], "\n"), err)
}

// packages is a line of a Dockerfile that installs the Debian packages that
// app.toml asks for, and more; nothing when there are none.
func (s *source) packages(more ...string) string {
	list := slices.Clone(s.cfg.Build.Packages)
	for _, name := range more {
		if !slices.Contains(list, name) {
			list = append(list, name)
		}
	}
	if len(list) == 0 {
		return ""
	}
	return "RUN apt-get update && apt-get install -y --no-install-recommends " + strings.Join(list, " ") + " && rm -rf /var/lib/apt/lists/*\n"
}

// saysPackages gives the packages of app.toml as a reason.
func (s *source) saysPackages(p *Plan) {
	if len(s.cfg.Build.Packages) > 0 {
		p.because("%s asks for the packages %s, when it is built and when it runs", s.cfg.File, strings.Join(s.cfg.Build.Packages, " "))
	}
}

// args declares the build arguments of app.toml in a stage.
func (s *source) args() string {
	var b strings.Builder
	for _, k := range sortedKeys(s.cfg.Build.Args) {
		fmt.Fprintf(&b, "ARG %s\n", k)
	}
	return b.String()
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// quote makes a word of a shell command line.
func quote(s string) string {
	if s != "" && strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:@=+,") == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// base is the last element of a path, "app" for none.
func base(p string) string {
	if b := path.Base(p); b != "." && b != "/" {
		return b
	}
	return "app"
}
