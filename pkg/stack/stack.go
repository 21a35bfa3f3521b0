// Package stack finds out how a source folder is built, and says why.
//
// The result is a Plan: the Dockerfile (the folder's own, or a generated
// one), the reasons in words, the services with their commands, and the port. What
// app.toml and Procfile say (package appconfig) comes before what is detected,
// and what a stack cannot do with is refused, never ignored.
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
	"io/fs"
	"slices"
	"strings"

	"miren.dev/runtime/pkg/appconfig"
	"miren.dev/runtime/pkg/errs"
)

// user and group of processes in generated images, as numbers so that copies need no name.
const owner = "10001:10001"

// Plan is how a source folder is built and run.
type Plan struct {
	Stack    string   // dockerfile, go, python, php, ruby, java, rust, deno, node, static
	Reasons  []string // what was found and what follows, for people
	Warnings []string // what is probably not as it was meant, for people
	Facts    []Fact   // versions and commands of a generated Dockerfile, with their origin
	// Others are stacks that the folder could be built with besides its Dockerfile.
	Others     []string
	Dockerfile string // the text to build
	Generated  bool   // Dockerfile is ours
	Path       string // of the folder's own Dockerfile
	// Bases are the images that the Dockerfile begins from or copies from, as written there.
	Bases    []string
	Secrets  []Secret            // that steps of the Dockerfile may read
	Services []appconfig.Service // complete: with the port of web; not with other defaults
	Tasks    []appconfig.Task    // from app.toml
	Addons   []appconfig.Addon   // from app.toml
	Routes   []appconfig.Route   // from app.toml
	Env      map[string]string   // from app.toml
	Network  *appconfig.Network  // from app.toml; nil: it says nothing
	Preview  *appconfig.Preview  // from app.toml; nil: it says nothing
	Release  []string            // command that runs once before a version gets traffic; empty: none
}

// assets are the stacks whose files are in projects of other languages too, for browsers.
var assets = []string{"deno", "node", "static"}

// ErrNoStack is in the chain of the error of Detect when nothing was found.
var ErrNoStack = errors.New("no way to build this source was found")

// detector finds one stack.
type detector struct {
	name    string
	looks   string // what it looks for, for the message when nothing is found
	present func(s *source) bool
	plan    func(s *source, p *Plan) error
}

// dockerfileStack is the name of the stack that builds the folder's own Dockerfile.
const dockerfileStack = "dockerfile"

// In the order of precedence.
var detectors = []detector{
	{dockerfileStack, "Dockerfile", hasDockerfile, planDockerfile},
	{"go", "go.mod or go.work", hasGo, planGo},
	{"python", "requirements.txt, pyproject.toml, Pipfile or setup.py", hasPython, planPython},
	{"ruby", "Gemfile or config.ru", hasRuby, planRuby},
	{"php", "composer.json, index.php or public/index.php", hasPHP, planPHP},
	{"java", "pom.xml or build.gradle", hasJava, planJava},
	{"rust", "Cargo.toml", hasRust, planRust},
	{"deno", "deno.json", hasDeno, planDeno},
	{"node", "package.json", func(s *source) bool { return s.has("package.json") }, planNode},
	{"static", "index.html, in the folder itself or in public/, dist/, build/ or site/", hasStatic, planStatic},
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
		if cfg.Build.Stack == "" && slices.Contains(assets, d.name) && s.otherProject() != "" {
			break // what the stack would build is only its assets
		}
		p, err := s.planWith(d)
		if err != nil {
			return nil, s.offer(d, err)
		}
		p.Others = s.others(d)
		return p, nil
	}
	return nil, s.notDetected()
}

func (s *source) planWith(d detector) (*Plan, error) {
	p := &Plan{Stack: d.name, Env: s.cfg.Env, Network: s.cfg.Network, Preview: s.cfg.Preview, Release: s.cfg.Release, Tasks: s.cfg.Tasks, Addons: s.cfg.Addons, Routes: s.cfg.Routes}
	if s.cfg.Build.Stack != "" {
		p.because("the stack %s was asked for", d.name)
	}
	if err := s.unused(d.name); err != nil {
		return nil, err
	}
	if err := d.plan(s, p); err != nil {
		return nil, err
	}
	s.secrets(p)
	if len(p.Release) > 0 {
		p.because("the release command runs once before a new version gets traffic: %s", p.Release[len(p.Release)-1])
	}
	return p, s.services(p)
}

// others are the stacks that could build a folder whose Dockerfile was found, should that not work.
func (s *source) others(d detector) []string {
	if d.name != dockerfileStack || s.cfg.Build.Stack != "" || s.cfg.Build.Dockerfile != "" {
		return nil
	}
	var names []string
	for _, o := range detectors {
		if o.name == d.name || !o.present(s) {
			continue
		}
		without := &source{s.FS, choose(s.cfg, o.name)}
		if _, err := without.planWith(o); err == nil {
			names = append(names, o.name)
		}
	}
	return names
}

// offer adds the stacks that could build the folder instead to an error of d.
func (s *source) offer(d detector, err error) error {
	if hint := Offer(s.others(d)); hint != "" {
		return errs.New(errs.ClassOf(err), "%w", err).WithHint("%s", strings.TrimSpace(errs.HintOf(err)+"\n"+hint))
	}
	return err
}

// Offer says how to build with one of the other stacks of a Plan; empty for none.
func Offer(others []string) string {
	if len(others) == 0 {
		return ""
	}
	return fmt.Sprintf("without the Dockerfile it can be built as %s: `r deploy --stack %s`", strings.Join(others, " or "), others[0])
}

// Choose returns cfg with a stack that was asked for outside of it (`r deploy --stack`), whose settings for
// a Dockerfile are left out for every other stack; "" is cfg itself. InvalidArgument for a name of no stack.
func Choose(cfg *appconfig.Config, name string) (*appconfig.Config, error) {
	if name == "" {
		return cfg, nil
	}
	if err := CheckName(name); err != nil {
		return nil, err
	}
	return choose(cfg, name), nil
}

func choose(cfg *appconfig.Config, name string) *appconfig.Config {
	chosen := *cfg
	chosen.Build.Stack = name
	if name != dockerfileStack {
		chosen.Build.Dockerfile, chosen.Build.Target = "", ""
	}
	return &chosen
}

// CheckName returns an error of class InvalidArgument for a name of no stack.
func CheckName(name string) error {
	var names []string
	for _, d := range detectors {
		names = append(names, d.name)
	}
	if !slices.Contains(names, name) {
		return errs.New(errs.InvalidArgument, "there is no stack %q", name).WithHint("stacks are %s", strings.Join(names, ", "))
	}
	return nil
}

// compiled are the stacks that install and build something.
var compiled = []string{"go", "node", "python", "ruby", "php", "java", "rust", "deno"}

// buildKeys are the keys of [build] that not every stack uses.
var buildKeys = []struct {
	name   string
	stacks []string
	set    func(b *appconfig.Build) bool
}{
	{"dockerfile", []string{dockerfileStack}, func(b *appconfig.Build) bool { return b.Dockerfile != "" }},
	{"target", []string{dockerfileStack}, func(b *appconfig.Build) bool { return b.Target != "" }},
	{"package", []string{"go", "java", "node", "rust"}, func(b *appconfig.Build) bool { return b.Package != "" }},
	{"command", compiled[1:], func(b *appconfig.Build) bool { return b.Command != "" }},
	{"output", []string{"static", "node", "deno"}, func(b *appconfig.Build) bool { return b.Output != "" }},
	{"fallback", []string{"static", "node", "deno"}, func(b *appconfig.Build) bool { return b.Fallback != "" }},
	{"version", compiled, func(b *appconfig.Build) bool { return b.Version != "" }},
	{"packages", compiled, func(b *appconfig.Build) bool { return len(b.Packages) > 0 }},
	{"args", append([]string{dockerfileStack}, compiled...), func(b *appconfig.Build) bool { return len(b.Args) > 0 }},
	{"secrets", append([]string{dockerfileStack}, compiled...), func(b *appconfig.Build) bool { return len(b.Secrets) > 0 }},
}

// unused refuses a key that a stack does nothing with.
func (s *source) unused(stack string) error {
	for _, k := range buildKeys {
		if k.set(&s.cfg.Build) && !slices.Contains(k.stacks, stack) {
			return errs.New(errs.InvalidArgument, "%s: build.%s means nothing to the stack %s", s.cfg.File, k.name, stack).
				WithHint("it is for %s; remove it, or choose another stack with build.stack", strings.Join(k.stacks, ", "))
		}
	}
	return nil
}

func (p *Plan) because(format string, args ...any) {
	p.Reasons = append(p.Reasons, fmt.Sprintf(format, args...))
}

func (p *Plan) warn(format string, args ...any) {
	p.Warnings = append(p.Warnings, fmt.Sprintf(format, args...))
}
