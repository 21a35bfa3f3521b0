package stack

import (
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"

	"miren.dev/runtime/pkg/appconfig"
	"miren.dev/runtime/pkg/errs"
)

const pipCache = "--mount=type=cache,target=/root/.cache/pip"

func hasPython(s *source) bool {
	if s.has("requirements.txt") || s.has("Pipfile") {
		return true
	}
	// pyproject.toml is also where tools of other languages' projects are configured.
	return s.has("pyproject.toml") && !s.has("package.json")
}

// pythonDeps is how dependencies are installed, and their names.
type pythonDeps struct {
	copy    []string // files that are needed for it; nil: everything
	install string   // commands
	after   string   // once the source is there
	names   []string // of distributions, in lower case
}

func (d *pythonDeps) has(name string) bool { return slices.Contains(d.names, name) }

func planPython(s *source, p *Plan) error {
	deps, err := s.pythonDeps(p)
	if err != nil {
		return err
	}
	command, extra, err := s.pythonStart(p, deps)
	if err != nil {
		return err
	}
	const from = "runtime/python"
	var b strings.Builder
	fmt.Fprintf(&b, "FROM %s\n%s%s", from, s.args(), s.packages(p))
	b.WriteString("ENV PYTHONUNBUFFERED=1 PIP_NO_INPUT=1 PIP_PROGRESS_BAR=off PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PATH=/opt/venv/bin:$PATH\n")
	fmt.Fprintf(&b, "WORKDIR /app\nRUN python3 -m venv /opt/venv && chown %s /app\n", owner)
	if deps.install != "" {
		if len(deps.copy) > 0 {
			fmt.Fprintf(&b, "COPY %s ./\n", strings.Join(deps.copy, " "))
		} else if deps.copy == nil {
			b.WriteString("COPY . .\n")
		}
		fmt.Fprintf(&b, "RUN %s %s\n", pipCache, deps.install)
	}
	if extra != "" {
		fmt.Fprintf(&b, "RUN %s pip install %s\n", pipCache, extra)
	}
	fmt.Fprintf(&b, "COPY --chown=%s . .\n", owner)
	if deps.after != "" {
		fmt.Fprintf(&b, "RUN %s %s\n", pipCache, deps.after)
	}
	fmt.Fprintf(&b, "ENV PORT=%d\nUSER %s\n", appconfig.DefaultPort, owner)
	if command != "" {
		fmt.Fprintf(&b, "CMD %s\n", jsonList(appconfig.Shell(command)))
	}
	p.Dockerfile, p.Generated, p.Bases, p.Services = b.String(), true, []string{from}, web(appconfig.DefaultPort)
	return nil
}

var (
	requirement = regexp.MustCompile(`^([A-Za-z0-9][A-Za-z0-9._-]*)`)
	included    = regexp.MustCompile(`^(?:-r|--requirement|-c|--constraint)[ =]*(\S+)`)
)

func normal(name string) string {
	return strings.ToLower(strings.ReplaceAll(strings.ReplaceAll(name, "_", "-"), ".", "-"))
}

func (s *source) pythonDeps(p *Plan) (*pythonDeps, error) {
	switch {
	case s.has("requirements.txt"):
		p.because("there is a requirements.txt: dependencies are installed with pip")
		d := &pythonDeps{install: "pip install -r requirements.txt", copy: []string{}}
		if err := s.requirements("requirements.txt", d, map[string]bool{}); err != nil {
			return nil, err
		}
		return d, nil
	case s.has("Pipfile"):
		return s.pipfile(p)
	}
	return s.pyproject(p)
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
			d.copy = nil // the source itself is a dependency
			continue
		}
		if m := requirement.FindStringSubmatch(line); m != nil {
			d.names = append(d.names, normal(m[1]))
		}
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
	}
	if _, err := toml.Decode(text, &f); err != nil {
		return nil, errs.New(errs.InvalidArgument, "Pipfile: %w", err)
	}
	d := &pythonDeps{copy: []string{"Pipfile"}}
	for _, name := range sortedKeys(f.Packages) {
		d.names = append(d.names, normal(name))
	}
	if s.has("Pipfile.lock") {
		p.because("there are Pipfile and Pipfile.lock: dependencies are installed as locked")
		d.copy = append(d.copy, "Pipfile.lock")
		d.install = "pip install pipenv && pipenv requirements > /tmp/requirements.txt && pip install -r /tmp/requirements.txt"
	} else {
		p.because("there is a Pipfile without Pipfile.lock: the versions of dependencies are chosen by the build")
		d.install = "pip install pipenv && pipenv lock && pipenv requirements > /tmp/requirements.txt && pip install -r /tmp/requirements.txt"
	}
	return d, nil
}

func (s *source) pyproject(p *Plan) (*pythonDeps, error) {
	text, err := s.read("pyproject.toml")
	if err != nil {
		return nil, err
	}
	var f struct {
		Project struct {
			Dependencies []string `toml:"dependencies"`
		} `toml:"project"`
		BuildSystem map[string]any `toml:"build-system"`
		Tool        struct {
			Poetry struct {
				Dependencies map[string]any `toml:"dependencies"`
			} `toml:"poetry"`
		} `toml:"tool"`
	}
	if _, err := toml.Decode(text, &f); err != nil {
		return nil, errs.New(errs.InvalidArgument, "pyproject.toml: %w", err)
	}
	d := &pythonDeps{copy: []string{}}
	for _, r := range f.Project.Dependencies {
		if m := requirement.FindStringSubmatch(strings.TrimSpace(r)); m != nil {
			d.names = append(d.names, normal(m[1]))
		}
	}
	for _, name := range sortedKeys(f.Tool.Poetry.Dependencies) {
		if name != "python" {
			d.names = append(d.names, normal(name))
		}
	}
	switch {
	case s.has("uv.lock"):
		p.because("there are pyproject.toml and uv.lock: dependencies are installed with uv")
		d.copy = []string{"pyproject.toml", "uv.lock"}
		d.install = "pip install uv && UV_PROJECT_ENVIRONMENT=/opt/venv uv sync --frozen --no-dev --no-install-project"
	case s.has("poetry.lock"):
		p.because("there are pyproject.toml and poetry.lock: dependencies are installed with poetry")
		d.copy = []string{"pyproject.toml", "poetry.lock"}
		d.install = "python3 -m venv /opt/poetry && /opt/poetry/bin/pip install poetry && VIRTUAL_ENV=/opt/venv /opt/poetry/bin/poetry install --only main --no-root --no-interaction"
	case len(f.Project.Dependencies) > 0:
		p.because("pyproject.toml has the dependencies: they are installed with pip")
		var quoted []string
		for _, r := range f.Project.Dependencies {
			quoted = append(quoted, quote(r))
		}
		d.install = "pip install " + strings.Join(quoted, " ")
	case len(f.Tool.Poetry.Dependencies) > 0:
		p.because("pyproject.toml is poetry's, without poetry.lock: the project is installed with pip")
		d.after = "pip install ."
		return d, nil
	default:
		p.because("pyproject.toml has no dependencies")
	}
	if f.BuildSystem != nil && len(f.Project.Dependencies) > 0 {
		d.after = "pip install --no-deps ."
	}
	return d, nil
}

// Files that apps are in, in the order of preference.
var pythonFiles = []string{"app.py", "main.py", "wsgi.py", "asgi.py", "server.py", "application.py", "run.py", "api.py", "src/app.py", "src/main.py", "app/main.py", "app/app.py", "app/__init__.py"}

// pythonStart is the command of the web service, and what it needs besides the dependencies.
func (s *source) pythonStart(p *Plan, d *pythonDeps) (command, extra string, err error) {
	if web := s.cfg.Service(appconfig.DefaultService); s.cfg.Procfile || web != nil && len(web.Command) > 0 {
		return "", "", nil
	}
	gunicorn := func(app, what string) (string, string, error) {
		if !d.has("gunicorn") {
			extra = "gunicorn"
			p.because("%s: served by gunicorn, which is installed besides", what)
		} else {
			p.because("%s: served by gunicorn", what)
		}
		return "gunicorn --bind 0.0.0.0:$PORT --threads 8 " + quote(app), extra, nil
	}
	if s.has("manage.py") && (d.has("django") || s.mentions("manage.py", "django")) {
		for _, module := range s.djangoProjects() {
			return gunicorn(module+".wsgi", "manage.py and "+module+"/wsgi.py are Django's")
		}
	}
	frameworks := []struct {
		distribution, class string
		asgi                bool
	}{{"fastapi", "FastAPI", true}, {"starlette", "Starlette", true}, {"quart", "Quart", true}, {"litestar", "Litestar", true}, {"flask", "Flask", false}, {"bottle", "Bottle", false}, {"falcon", "falcon.App", false}}
	for _, f := range frameworks {
		if !d.has(f.distribution) {
			continue
		}
		object, file := s.appObject(f.class)
		if object == "" {
			continue
		}
		what := fmt.Sprintf("%s makes a %s app", file, f.class)
		if !f.asgi {
			return gunicorn(object, what)
		}
		if !d.has("uvicorn") && !d.has("uvicorn[standard]") {
			extra = "uvicorn"
			what += " (uvicorn is installed besides)"
		}
		p.because("%s: served by uvicorn", what)
		return "uvicorn --host 0.0.0.0 --port $PORT " + quote(object), extra, nil
	}
	for _, f := range pythonFiles {
		if s.has(f) && !strings.HasSuffix(f, "__init__.py") {
			p.because("there is %s: it is run by python", f)
			return "python3 " + f, "", nil
		}
	}
	return "", "", errs.New(errs.InvalidArgument, "it is a Python project, but how it starts is not known").
		WithHint("looked for manage.py (Django), an app object of Flask, FastAPI and others, and %s\nadd a Procfile with a line `web: <command>`", strings.Join(pythonFiles[:6], ", "))
}

func (s *source) mentions(file, what string) bool {
	text, err := s.read(file)
	return err == nil && strings.Contains(text, what)
}

// djangoProjects are the packages with a wsgi.py.
func (s *source) djangoProjects() []string {
	found, _ := fs.Glob(s, "*/wsgi.py")
	var out []string
	for _, f := range found {
		out = append(out, path.Dir(f))
	}
	return out
}

// appObject finds "module:name" of an object of a class, and its file.
func (s *source) appObject(class string) (object, file string) {
	assigned := regexp.MustCompile(`(?m)^([A-Za-z_]\w*)\s*(?::[^=\n]+)?=\s*(?:[\w.]+\.)?` + regexp.QuoteMeta(class) + `\(`)
	factory := regexp.MustCompile(`(?m)^def (create_app|make_app)\(\s*\)|^def (create_app|make_app)\([^)]*=[^)]*\)`)
	for _, f := range pythonFiles {
		if !s.has(f) {
			continue
		}
		text, err := s.read(f)
		if err != nil {
			continue
		}
		module := strings.TrimSuffix(strings.TrimSuffix(strings.ReplaceAll(f, "/", "."), ".py"), ".__init__")
		if m := assigned.FindStringSubmatch(text); m != nil {
			return module + ":" + m[1], f
		}
		if m := factory.FindStringSubmatch(text); m != nil && strings.Contains(text, class+"(") && class == "Flask" {
			return module + ":" + m[1] + m[2] + "()", f
		}
	}
	return "", ""
}
