package stack

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"miren.dev/runtime/pkg/appconfig"
	"miren.dev/runtime/pkg/errs"
)

// Files that apps are in, in the order of preference: of the folder itself, and of a package.
var (
	pythonFiles   = []string{"app.py", "main.py", "wsgi.py", "asgi.py", "server.py", "application.py", "run.py", "api.py"}
	packageFiles  = []string{"__init__.py", "app.py", "main.py", "server.py", "wsgi.py", "asgi.py", "api.py", "factory.py", "application.py"}
	notAppFolders = []string{"tests", "test", "docs", "doc", "migrations", "alembic", "scripts", "examples", "venv", "env", "node_modules", "static", "templates"}
)

// framework is one whose apps are an object of a class.
type framework struct {
	distribution, class string
	asgi                bool
}

var frameworks = []framework{
	{"fastapi", "FastAPI", true}, {"starlette", "Starlette", true}, {"quart", "Quart", true}, {"litestar", "Litestar", true},
	{"flask", "Flask", false}, {"bottle", "Bottle", false}, {"falcon", "falcon.App", false}, {"dash", "Dash", false},
}

// pythonCommand is how a Python app is served.
type pythonCommand struct {
	line  string // empty: services have their own
	from  string // file that decided line
	extra string // distribution that it needs besides the dependencies
	path  string // folder that modules are found in; empty: the app's own
	build string // command once the source is installed; empty: none
}

// pythonStart finds the command of the web service.
func (s *source) pythonStart(p *Plan, d *pythonDeps) (*pythonCommand, error) {
	c := &pythonCommand{}
	django := s.django(d)
	if django != nil {
		c.build = s.collectStatic(p, d, django)
	}
	if web := s.cfg.Service(appconfig.DefaultService); s.cfg.Procfile && len(s.cfg.Services) > 0 || web != nil && len(web.Command) > 0 {
		return c, nil
	}
	if django != nil {
		if why := s.djangoAsync(d, django); why != "" {
			c.from = django.package_ + "/asgi.py"
			c.uvicorn(p, d, "", django.package_+".asgi:application", "manage.py and "+c.from+" are Django's, and "+why)
			if c.extra != "" {
				c.extra += " websockets" // which channels are for
			}
			return c, nil
		}
		c.from = django.package_ + "/wsgi.py"
		c.gunicorn(p, d, django.package_+".wsgi", "manage.py and "+django.package_+"/wsgi.py are Django's")
		return c, nil
	}
	for _, f := range frameworks {
		if !d.has(f.distribution) {
			continue
		}
		o := s.appObject(f.class)
		if o == nil {
			continue
		}
		c.path, c.from = o.path, o.file
		what := fmt.Sprintf("%s makes a %s app", o.file, f.class)
		if o.factory {
			what = fmt.Sprintf("%s in %s makes a %s app", o.name, o.file, f.class)
		}
		if !f.asgi {
			call := o.module + ":" + o.name
			switch {
			case o.factory:
				call += "()"
			case f.class == "Dash":
				call += ".server"
			}
			c.gunicorn(p, d, call, what)
			return c, nil
		}
		factory := ""
		if o.factory {
			factory = "--factory "
		}
		c.uvicorn(p, d, factory, o.module+":"+o.name, what)
		return c, nil
	}
	if d.has("streamlit") {
		if f := s.first("app.py", "streamlit_app.py", "main.py", "Home.py"); f != "" {
			p.because("%s is run by streamlit", f)
			c.from = f
			c.line = "streamlit run --server.port $PORT --server.address 0.0.0.0 --server.headless true " + quote(f)
			return c, nil
		}
	}
	if script := s.projectScript(d); script != "" {
		p.because("pyproject.toml has the script %s: it is run", script)
		c.line, c.from = quote(script), "pyproject.toml"
		return c, nil
	}
	if f := s.first(append(slices.Clone(pythonFiles), "src/app.py", "src/main.py", "app/main.py", "app/app.py")...); f != "" {
		p.because("there is %s: it is run by python", f)
		c.line, c.from = "python3 "+f, f
		return c, nil
	}
	if found := s.glob("*/__main__.py"); len(found) == 1 {
		p.because("there is %s: the package is run by python", found[0])
		c.line, c.from = "python3 -m "+path.Dir(found[0]), found[0]
		return c, nil
	}
	if len(d.scripts) > 1 {
		return nil, errs.New(errs.InvalidArgument, "pyproject.toml has several scripts and none is obviously the app: %s", strings.Join(d.scripts, ", ")).
			WithHint("add a Procfile with a line `web: %s`", d.scripts[0])
	}
	return nil, errs.New(errs.InvalidArgument, "it is a Python project, but how it starts is not known").
		WithHint("looked for manage.py (Django), an app object or a create_app of Flask, FastAPI and others, [project.scripts], and %s\nadd a Procfile with a line `web: <command>`", strings.Join(pythonFiles[:6], ", "))
}

// gunicorn serves a WSGI app.
func (c *pythonCommand) gunicorn(p *Plan, d *pythonDeps, app, what string) {
	if !d.has("gunicorn") {
		c.extra = "gunicorn"
		p.because("%s: served by gunicorn, which is installed besides", what)
	} else {
		p.because("%s: served by gunicorn", what)
	}
	c.line = "gunicorn --bind 0.0.0.0:$PORT --threads 8 " + quote(app)
}

// uvicorn serves an ASGI app. options are empty or end with a space.
func (c *pythonCommand) uvicorn(p *Plan, d *pythonDeps, options, app, what string) {
	if !d.has("uvicorn") {
		c.extra = "uvicorn"
		what += " (uvicorn is installed besides)"
	}
	p.because("%s: served by uvicorn", what)
	c.line = "uvicorn --host 0.0.0.0 --port $PORT " + options + quote(app)
}

// djangoAsync says why a project is served through its asgi.py; empty: it is served through wsgi.py.
func (s *source) djangoAsync(d *pythonDeps, project *djangoProject) string {
	switch {
	case !s.has(project.package_ + "/asgi.py"):
		return ""
	case !s.has(project.package_ + "/wsgi.py"):
		return "there is no wsgi.py"
	case d.has("channels") || d.has("daphne"):
		return "channels is among the dependencies"
	case d.has("uvicorn") && !d.has("gunicorn"):
		return "uvicorn is among the dependencies, gunicorn is not"
	}
	return ""
}

// projectScript is the one of the project's scripts that is the app; empty: none is obviously.
func (s *source) projectScript(d *pythonDeps) string {
	if len(d.scripts) == 1 {
		return d.scripts[0]
	}
	for _, name := range []string{"web", "server", "serve", "start", "app", s.cfg.Name} {
		if name != "" && slices.Contains(d.scripts, name) {
			return name
		}
	}
	return ""
}

// djangoProject is a source with a manage.py.
type djangoProject struct {
	package_ string // that has wsgi.py or asgi.py
	settings []string
}

var settingsModule = regexp.MustCompile(`DJANGO_SETTINGS_MODULE['"]\s*,\s*['"]([\w.]+)['"]`)

// django returns the project, nil when it is none.
func (s *source) django(d *pythonDeps) *djangoProject {
	if !s.has("manage.py") || !d.has("django") && !s.mentions("manage.py", "django") {
		return nil
	}
	found := append(s.glob("*/wsgi.py"), s.glob("*/asgi.py")...)
	if len(found) == 0 {
		return nil
	}
	project := &djangoProject{package_: path.Dir(found[0])}
	text, _ := s.read("manage.py")
	if m := settingsModule.FindStringSubmatch(text); m != nil {
		module := strings.ReplaceAll(m[1], ".", "/")
		if top, _, _ := strings.Cut(module, "/"); s.first(top+"/wsgi.py", top+"/asgi.py") != "" {
			project.package_ = top
		}
		project.settings = append(s.glob(module+".py"), s.glob(module+"/*.py")...)
		project.settings = append(project.settings, s.glob(path.Dir(module)+"/*.py")...)
	}
	project.settings = append(project.settings, s.glob(project.package_+"/settings*.py")...)
	project.settings = append(project.settings, s.glob(project.package_+"/settings/*.py")...)
	return project
}

// collectStatic is the command that collects the static files of a Django
// project; empty where settings have no place for them, or the variable that other hosts know too is set.
func (s *source) collectStatic(p *Plan, d *pythonDeps, project *djangoProject) string {
	if slices.ContainsFunc([]string{s.cfg.Env["DISABLE_COLLECTSTATIC"], s.cfg.Build.Args["DISABLE_COLLECTSTATIC"]}, func(v string) bool { return v != "" && v != "0" }) {
		p.because("DISABLE_COLLECTSTATIC is set: static files are not collected")
		return ""
	}
	root := slices.IndexFunc(project.settings, func(f string) bool { return s.mentions(f, "STATIC_ROOT") })
	if root < 0 {
		p.because("the settings have no STATIC_ROOT: static files are not collected")
		return ""
	}
	p.because("%s has STATIC_ROOT: static files are collected by manage.py (DISABLE_COLLECTSTATIC = \"1\" in [env] leaves that out)", project.settings[root])
	if !d.has("whitenoise") && !slices.ContainsFunc(project.settings, func(f string) bool { return s.mentions(f, "storages") }) {
		p.warn("whitenoise is not among the dependencies: nothing serves the static files of Django unless DEBUG is on")
	}
	// Settings read variables that are there only when the app runs.
	line := ""
	for _, k := range sortedKeys(s.cfg.Env) {
		line += k + "=" + quote(s.cfg.Env[k]) + " "
	}
	for _, k := range []string{"SECRET_KEY", "DJANGO_SECRET_KEY"} {
		if s.cfg.Env[k] == "" {
			line += k + "=only-while-building "
		}
	}
	return line + "python3 manage.py collectstatic --noinput"
}

// appObject is a variable that holds an app, or a function that makes one.
type appObject struct {
	module, name, file string
	factory            bool
	path               string // folder that the module is found in; empty: the app's own
}

var factoryFunction = regexp.MustCompile(`(?m)^(?:async )?def (create_app|make_app|build_app|get_app|app_factory|create_application)\(\s*\)|^(?:async )?def (create_app|make_app|build_app|get_app|app_factory|create_application)\((?:[^()]|\([^()]*\))*\)`)

// appObject finds an object of a class, nil for none.
func (s *source) appObject(class string) *appObject {
	assigned := regexp.MustCompile(`(?m)^([A-Za-z_]\w*)\s*(?::[^=\n]+)?=\s*(?:[\w.]+\.)?` + regexp.QuoteMeta(class) + `\(`)
	var factory *appObject
	for _, f := range s.pythonSources() {
		text, err := s.read(f.name)
		if err != nil {
			continue
		}
		if m := assigned.FindStringSubmatch(text); m != nil {
			return &appObject{module: f.module, name: m[1], file: f.name, path: f.path}
		}
		m := factoryFunction.FindStringSubmatch(text)
		if factory != nil || m == nil || !strings.Contains(text, class+"(") {
			continue
		}
		name := m[1] + m[2]
		// Called without arguments: every parameter needs a default.
		if arguments := strings.TrimSpace(m[0][strings.Index(m[0], "(")+1 : len(m[0])-1]); arguments != "" && !allOptional(arguments) {
			continue
		}
		factory = &appObject{module: f.module, name: name, file: f.name, factory: true, path: f.path}
	}
	return factory
}

// allOptional says whether a function with these parameters can be called without any.
func allOptional(parameters string) bool {
	depth := 0
	split := strings.FieldsFunc(parameters, func(r rune) bool {
		switch r {
		case '(', '[', '{':
			depth++
		case ')', ']', '}':
			depth--
		}
		return r == ',' && depth == 0
	})
	for _, parameter := range split {
		parameter = strings.TrimSpace(parameter)
		if parameter != "" && !strings.Contains(parameter, "=") && !strings.HasPrefix(parameter, "*") && parameter != "/" {
			return false
		}
	}
	return true
}

// pythonSource is a file that an app may be in.
type pythonSource struct{ name, module, path string }

// pythonSources are those that are there: of the folder itself, of its packages, and of src/.
func (s *source) pythonSources() []pythonSource {
	var out []pythonSource
	add := func(root, name string) {
		module := strings.TrimPrefix(name, root+"/")
		module = strings.TrimSuffix(strings.TrimSuffix(strings.ReplaceAll(module, "/", "."), ".py"), ".__init__")
		out = append(out, pythonSource{name, module, root})
	}
	roots := []string{""}
	if s.isDir("src") && !s.has("src/__init__.py") {
		roots = append(roots, "src")
	}
	for _, root := range roots {
		for _, f := range pythonFiles {
			if name := path.Join(root, f); s.has(name) {
				add(root, name)
			}
		}
		var folders []string
		for _, f := range packageFiles {
			for _, name := range s.glob(path.Join(root, "*", f)) {
				folders = append(folders, path.Dir(name))
			}
		}
		for _, dir := range unique(folders) {
			if slices.Contains(notAppFolders, path.Base(dir)) || strings.HasPrefix(path.Base(dir), ".") || root == "" && dir == "src" && len(roots) > 1 {
				continue
			}
			for _, f := range packageFiles {
				if name := path.Join(dir, f); s.has(name) {
					add(root, name)
				}
			}
		}
	}
	return out
}
