// Package stack finds out how a source folder is built, and says why.
//
// The result is a Plan: the Dockerfile (the folder's own, or a generated
// one), the reasons in words, the services with their commands, and the port. What
// app.toml and Procfile say (package appconfig) comes before what is detected.
//
// Generated Dockerfiles begin FROM images named "runtime/<name>", which package
// baseimage of the components makes; their layers are ordered so that a
// change of source alone keeps the layers of the dependencies, and package
// managers keep their downloads in cache mounts. They run as the user
// "runtime" of those images, in a directory that it owns.
package stack

import (
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

// user and group of processes in generated images, as numbers so that copies need no name.
const owner = "10001:10001"

// maxRead bounds the bytes that are read of one file of the source.
const maxRead = 4 << 20

// Plan is how a source folder is built and run.
type Plan struct {
	Stack      string   // dockerfile, go, node, python, static
	Reasons    []string // why it is built so, for people
	Dockerfile string   // the text to build
	Generated  bool     // Dockerfile is ours
	Path       string   // of the folder's own Dockerfile
	// Bases are the images that the Dockerfile begins from or copies from, as written there.
	Bases    []string
	Services []appconfig.Service // complete: with the port of web; not with other defaults
	Env      map[string]string   // from app.toml
}

// ErrNoStack is in the chain of the error of Detect when nothing was found.
var ErrNoStack = errors.New("no way to build this source was found")

// detector looks for one stack. found is false when it is not there; then
// missing says what was looked for.
type detector struct {
	name    string
	looks   string // what it looks for, for the message when nothing is found
	present func(s *source) bool
	plan    func(s *source, p *Plan) error
}

// In the order of precedence.
var detectors = []detector{
	{"dockerfile", "Dockerfile", hasDockerfile, planDockerfile},
	{"go", "go.mod", func(s *source) bool { return s.has("go.mod") }, planGo},
	{"python", "requirements.txt, pyproject.toml or Pipfile", hasPython, planPython},
	{"node", "package.json", func(s *source) bool { return s.has("package.json") }, planNode},
	{"static", "index.html, in the folder itself or in public/, dist/, build/ or site/", hasStatic, planStatic},
}

// source is a folder with its configuration.
type source struct {
	fs.FS
	cfg *appconfig.Config
}

// Detect makes the plan for a folder. cfg is what appconfig.Load returned for
// it. Class FailedPrecondition, with ErrNoStack, when nothing is recognised;
// InvalidArgument when something is, but cannot be built.
func Detect(fsys fs.FS, cfg *appconfig.Config) (*Plan, error) {
	s := &source{fsys, cfg}
	for _, d := range detectors {
		if want := cfg.Build.Stack; want != "" && want != d.name || want == "" && !d.present(s) {
			continue
		}
		p := &Plan{Stack: d.name, Env: cfg.Env}
		if cfg.Build.Stack != "" {
			p.because("%s says that the stack is %s", cfg.File, d.name)
		}
		if err := d.plan(s, p); err != nil {
			return nil, err
		}
		if err := s.services(p); err != nil {
			return nil, err
		}
		return p, nil
	}
	return nil, s.notDetected()
}

// notDetected is the error for a source that no detector recognises.
func (s *source) notDetected() error {
	var looked, there []string
	for _, d := range detectors {
		looked = append(looked, d.looks+" ("+d.name+")")
	}
	entries, err := fs.ReadDir(s, ".")
	if err != nil {
		return errs.New(errs.Unavailable, "read source: %w", err)
	}
	for _, e := range entries {
		if name := e.Name(); !strings.HasPrefix(name, ".") {
			if e.IsDir() {
				name += "/"
			}
			there = append(there, name)
		}
	}
	if len(there) == 0 {
		return errs.New(errs.FailedPrecondition, "%w: the folder is empty", ErrNoStack).
			WithHint("run this in the folder of an app; is everything ignored by .gitignore or .dockerignore?")
	}
	const most = 20
	if len(there) > most {
		there = append(there[:most], fmt.Sprintf("and %d more", len(there)-most))
	}
	return errs.New(errs.FailedPrecondition, "%w", ErrNoStack).
		WithHint("looked for: %s\nfound only: %s\nadd a Dockerfile, or run this in the folder of the app", strings.Join(looked, "; "), strings.Join(there, ", "))
}

// services completes the services of a plan from the configuration.
func (s *source) services(p *Plan) error {
	detected := p.Services
	p.Services = slices.Clone(s.cfg.Services)
	if s.cfg.Procfile {
		p.because("Procfile has the commands of the services")
	}
	find := func(name string) *appconfig.Service {
		for i := range p.Services {
			if p.Services[i].Name == name {
				return &p.Services[i]
			}
		}
		return nil
	}
	for _, d := range detected {
		have := find(d.Name)
		if have == nil {
			// A Procfile without web is an app without web.
			if d.Name == appconfig.DefaultService && s.cfg.Procfile && len(p.Services) > 0 {
				continue
			}
			p.Services = append(p.Services, d)
			continue
		}
		if have.Port == nil {
			have.Port = d.Port
		}
		if len(have.Command) == 0 {
			have.Command = d.Command
		}
		if have.HealthPath == "" {
			have.HealthPath = d.HealthPath
		}
	}
	if web := find(appconfig.DefaultService); web != nil && web.Port == nil {
		web.Port = ptr(int64(appconfig.DefaultPort))
	}
	for _, svc := range p.Services {
		if svc.Port != nil && *svc.Port > 0 {
			p.because("service %s listens on port %d, which PORT tells it", svc.Name, *svc.Port)
		}
		if svc.Name != appconfig.DefaultService && len(svc.Command) == 0 {
			return errs.New(errs.InvalidArgument, "service %s has no command", svc.Name).
				WithHint("set command in [services.%s] of %s", svc.Name, s.cfg.File)
		}
	}
	return nil
}

func (p *Plan) because(format string, args ...any) {
	p.Reasons = append(p.Reasons, fmt.Sprintf(format, args...))
}

// web is the service that every detected stack has.
func web(port int64) []appconfig.Service {
	return []appconfig.Service{{Name: appconfig.DefaultService, Port: ptr(port)}}
}

func ptr[T any](v T) *T { return &v }

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

// packages is a line of a Dockerfile that installs the Debian packages that
// app.toml asks for, or nothing.
func (s *source) packages(p *Plan) string {
	if len(s.cfg.Build.Packages) == 0 {
		return ""
	}
	list := strings.Join(s.cfg.Build.Packages, " ")
	p.because("%s asks for the packages %s", s.cfg.File, list)
	return "RUN apt-get update && apt-get install -y --no-install-recommends " + list + " && rm -rf /var/lib/apt/lists/*\n"
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
