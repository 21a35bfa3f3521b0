package stack

import (
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"

	"miren.dev/runtime/pkg/errs"
)

// pythonDeps is how dependencies are installed, and their names.
type pythonDeps struct {
	file       string   // that says what is installed
	copy       []string // files that are needed for it; nil: everything
	install    string   // commands
	after      string   // once the source is there
	names      []string // of distributions, in lower case
	git        bool     // some are cloned
	python     string   // the version that is required; empty: any
	pythonFrom string   // where that is said
	scripts    []string // commands that the project has once it is installed, sorted
}

func (d *pythonDeps) has(name string) bool { return slices.Contains(d.names, name) }

var (
	requirement = regexp.MustCompile(`^([A-Za-z0-9][A-Za-z0-9._-]*)`)
	included    = regexp.MustCompile(`^(?:-r|--requirement|-c|--constraint)[ =]*(\S+)`)
)

// add notes a requirement such as "Flask[async]>=3".
func (d *pythonDeps) add(text string) {
	text = strings.TrimSpace(text)
	if m := requirement.FindStringSubmatch(text); m != nil {
		d.names = append(d.names, normal(m[1]))
	}
	d.git = d.git || strings.Contains(text, "git+")
}

// setupFile is a program that names the dependencies of a project. Only running it tells them.
const setupFile = "setup.py"

// installProject installs the source with its dependencies.
const installProject = "pip install ."

func normal(name string) string {
	return strings.ToLower(strings.ReplaceAll(strings.ReplaceAll(name, "_", "-"), ".", "-"))
}

func (s *source) pythonDeps(p *Plan) (*pythonDeps, error) {
	switch {
	case s.has("requirements.txt"):
		p.because("there is a requirements.txt: dependencies are installed with pip")
		d := &pythonDeps{file: "requirements.txt", install: "pip install -r requirements.txt", copy: []string{}}
		if err := s.requirements("requirements.txt", d, map[string]bool{}); err != nil {
			return nil, err
		}
		// What it says beside the dependencies holds all the same.
		if s.has("pyproject.toml") {
			if f, err := s.readPyproject(); err == nil {
				d.python, d.pythonFrom = f.requires(), "pyproject.toml"
			}
		}
		return d, nil
	case s.has("Pipfile"):
		return s.pipfile(p)
	case s.has("pyproject.toml"):
		return s.pyproject(p)
	case s.has(setupFile):
		p.because("there is a setup.py: the project is installed with pip, with the dependencies that it names")
		return &pythonDeps{file: setupFile, copy: []string{}, after: installProject}, nil
	}
	p.because("there is no requirements.txt, pyproject.toml, Pipfile or setup.py: nothing is installed")
	return &pythonDeps{copy: []string{}}, nil
}

// requirements reads one file and those that it includes.
func (s *source) requirements(file string, d *pythonDeps, seen map[string]bool) error {
	if seen[file] {
		return nil
	}
	seen[file] = true
	text, err := s.read(file)
	if err != nil {
		return err
	}
	if d.copy != nil {
		d.copy = append(d.copy, file)
	}
	if path.Dir(file) != "." {
		d.copy = nil // COPY would flatten the folders
	}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if m := included.FindStringSubmatch(line); m != nil {
			if err := s.requirements(path.Join(path.Dir(file), m[1]), d, seen); err != nil {
				return err
			}
			continue
		}
		if strings.HasPrefix(line, "-e") || strings.HasPrefix(line, "--editable") || strings.HasPrefix(line, ".") || strings.HasPrefix(line, "file:") {
			d.git = d.git || strings.Contains(line, "git+")
			d.copy = nil // the source itself is a dependency
			continue
		}
		d.add(line)
	}
	return nil
}

func (s *source) pipfile(p *Plan) (*pythonDeps, error) {
	text, err := s.read("Pipfile")
	if err != nil {
		return nil, err
	}
	var f struct {
		Packages map[string]any `toml:"packages"`
		Requires struct {
			Version string `toml:"python_version"`
			Full    string `toml:"python_full_version"`
		} `toml:"requires"`
	}
	if _, err := toml.Decode(text, &f); err != nil {
		return nil, errs.New(errs.InvalidArgument, "Pipfile: %w", err)
	}
	d := &pythonDeps{file: "Pipfile", copy: []string{"Pipfile"}, python: f.Requires.Version, pythonFrom: "Pipfile"}
	if f.Requires.Full != "" {
		d.python = f.Requires.Full
	}
	for _, name := range sortedKeys(f.Packages) {
		d.names = append(d.names, normal(name))
		if t, ok := f.Packages[name].(map[string]any); ok && t["git"] != nil {
			d.git = true
		}
	}
	if s.has("Pipfile.lock") {
		p.because("there are Pipfile and Pipfile.lock: dependencies are installed as locked")
		d.file = "Pipfile.lock"
		d.copy = append(d.copy, d.file)
		d.install = "pip install pipenv && pipenv requirements > /tmp/requirements.txt && pip install -r /tmp/requirements.txt"
	} else {
		p.because("there is a Pipfile without Pipfile.lock: the versions of dependencies are chosen by the build")
		d.install = "pip install pipenv && pipenv lock && pipenv requirements > /tmp/requirements.txt && pip install -r /tmp/requirements.txt"
	}
	return d, nil
}

// pyproject is what matters of a pyproject.toml.
type pyproject struct {
	Project struct {
		Name         string            `toml:"name"`
		Dependencies []string          `toml:"dependencies"`
		Dynamic      []string          `toml:"dynamic"` // what the build of the project finds out
		Requires     string            `toml:"requires-python"`
		Scripts      map[string]string `toml:"scripts"`
	} `toml:"project"`
	BuildSystem map[string]any `toml:"build-system"`
	Tool        struct {
		Poetry struct {
			Dependencies map[string]any `toml:"dependencies"`
			Scripts      map[string]any `toml:"scripts"`
			PackageMode  *bool          `toml:"package-mode"`
		} `toml:"poetry"`
		UV struct {
			Package *bool `toml:"package"`
		} `toml:"uv"`
	} `toml:"tool"`
}

func (s *source) readPyproject() (*pyproject, error) {
	text, err := s.read("pyproject.toml")
	if err != nil {
		return nil, err
	}
	f := &pyproject{}
	if _, err := toml.Decode(text, f); err != nil {
		return nil, errs.New(errs.InvalidArgument, "pyproject.toml: %w", err)
	}
	return f, nil
}

// requires is the version of Python that the project needs; empty for any.
func (f *pyproject) requires() string {
	if f.Project.Requires != "" {
		return f.Project.Requires
	}
	switch v := f.Tool.Poetry.Dependencies["python"].(type) {
	case string:
		return v
	case map[string]any:
		text, _ := v["version"].(string)
		return text
	}
	return ""
}

func (s *source) pyproject(p *Plan) (*pythonDeps, error) {
	f, err := s.readPyproject()
	if err != nil {
		return nil, err
	}
	d := &pythonDeps{file: "pyproject.toml", copy: []string{}, python: f.requires(), pythonFrom: "pyproject.toml"}
	for _, r := range f.Project.Dependencies {
		d.add(r)
	}
	for _, name := range sortedKeys(f.Tool.Poetry.Dependencies) {
		if name != "python" {
			d.names = append(d.names, normal(name))
			if t, ok := f.Tool.Poetry.Dependencies[name].(map[string]any); ok && t["git"] != nil {
				d.git = true
			}
		}
	}
	d.scripts = append(sortedKeys(f.Project.Scripts), sortedKeys(f.Tool.Poetry.Scripts)...)
	switch {
	case s.has("uv.lock"):
		p.because("there are pyproject.toml and uv.lock: dependencies are installed with uv")
		d.file = "uv.lock"
		d.copy = []string{"pyproject.toml", d.file}
		const sync = "UV_PYTHON=/opt/venv/bin/python UV_PYTHON_DOWNLOADS=never UV_LINK_MODE=copy UV_PROJECT_ENVIRONMENT=/opt/venv uv sync --frozen --no-dev"
		d.install = "pip install uv && " + sync + " --no-install-project --inexact"
		if len(d.scripts) > 0 || f.BuildSystem != nil && (f.Tool.UV.Package == nil || *f.Tool.UV.Package) {
			d.after = sync + " --no-editable --inexact"
		}
	case s.has("poetry.lock"):
		p.because("there are pyproject.toml and poetry.lock: dependencies are installed with poetry")
		d.file = "poetry.lock"
		d.copy = []string{"pyproject.toml", d.file}
		const poetry = "VIRTUAL_ENV=/opt/venv /opt/poetry/bin/poetry install --only main --no-interaction"
		d.install = "python3 -m venv /opt/poetry && /opt/poetry/bin/pip install poetry && " + poetry + " --no-root"
		if len(d.scripts) > 0 && (f.Tool.Poetry.PackageMode == nil || *f.Tool.Poetry.PackageMode) {
			d.after = poetry
		}
	case len(f.Project.Dependencies) > 0:
		p.because("pyproject.toml has the dependencies: they are installed with pip")
		var quoted []string
		for _, r := range f.Project.Dependencies {
			quoted = append(quoted, quote(r))
		}
		d.install = "pip install " + strings.Join(quoted, " ")
	case len(f.Tool.Poetry.Dependencies) > 0:
		p.because("pyproject.toml is poetry's, without poetry.lock: the project is installed with pip")
		d.after = installProject
		return d, nil
	case s.has(setupFile) || slices.Contains(f.Project.Dynamic, "dependencies"):
		p.because("pyproject.toml leaves the dependencies to the build of the project: it is installed with pip")
		d.after = installProject
		return d, nil
	default:
		p.because("pyproject.toml has no dependencies")
	}
	if d.after == "" && !s.has("uv.lock") && !s.has("poetry.lock") && (f.BuildSystem != nil && len(f.Project.Dependencies) > 0 || len(d.scripts) > 0) {
		d.after = "pip install --no-deps ."
	}
	return d, nil
}
