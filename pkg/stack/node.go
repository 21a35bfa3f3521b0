package stack

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"

	"miren.dev/runtime/pkg/appconfig"
	"miren.dev/runtime/pkg/errs"
)

// defaultNode is the major version when nothing asks for another.
const defaultNode = 22

// packageJSON is what matters of one.
type packageJSON struct {
	Main            string            `json:"main"`
	Scripts         map[string]string `json:"scripts"`
	Dependencies    map[string]string `json:"dependencies"`
	DevDependencies map[string]string `json:"devDependencies"`
	PackageManager  string            `json:"packageManager"`
	Workspaces      json.RawMessage   `json:"workspaces"`
	Engines         struct {
		Node string `json:"node"`
	} `json:"engines"`
}

func (j *packageJSON) depends(name string) bool {
	_, a := j.Dependencies[name]
	_, b := j.DevDependencies[name]
	return a || b
}

// manager is how the packages of one lock file are installed.
type manager struct {
	name    string
	lock    string
	setup   string // a RUN line before anything else
	cache   string // where downloads are kept
	install string // everything
	prod    string // what is needed to run
	run     string // followed by the name of a script
}

var managerField = regexp.MustCompile(`^(npm|pnpm|yarn)@(\d+(?:\.\d+)*)`)

func (s *source) nodeManager(p *Plan, j *packageJSON) (manager, error) {
	version := ""
	if m := managerField.FindStringSubmatch(j.PackageManager); m != nil {
		version = m[2]
	}
	or := func(v string) string {
		if version != "" {
			return version
		}
		return v
	}
	switch {
	case s.has("package-lock.json"), s.has("npm-shrinkwrap.json"):
		lock := "package-lock.json"
		if !s.has(lock) {
			lock = "npm-shrinkwrap.json"
		}
		p.because("%s is there: dependencies are installed with npm ci", lock)
		return manager{"npm", lock, "", "/root/.npm", "npm ci", "npm ci --omit=dev", "npm run"}, nil
	case s.has("pnpm-lock.yaml"):
		p.because("pnpm-lock.yaml is there: dependencies are installed with pnpm")
		return manager{"pnpm", "pnpm-lock.yaml", "npm install -g pnpm@" + or("9"), "/root/.local/share/pnpm/store",
			"pnpm install --frozen-lockfile", "pnpm install --frozen-lockfile --prod", "pnpm run"}, nil
	case s.has("yarn.lock"):
		if s.has(".yarnrc.yml") || version != "" && !strings.HasPrefix(version, "1.") && version != "1" {
			return manager{}, errs.New(errs.InvalidArgument, "yarn %s is not supported without a Dockerfile", or("berry")).
				WithHint("add a Dockerfile, or a package-lock.json by `npm install`")
		}
		p.because("yarn.lock is there: dependencies are installed with yarn")
		return manager{"yarn", "yarn.lock", "npm install -g yarn@" + or("1"), "/usr/local/share/.cache/yarn",
			"yarn install --frozen-lockfile", "yarn install --frozen-lockfile --production", "yarn run"}, nil
	}
	if len(j.Dependencies)+len(j.DevDependencies) > 0 {
		p.because("there is no lock file: npm install chooses the versions of dependencies anew whenever package.json changes")
	}
	return manager{"npm", "", "", "/root/.npm", "npm install", "npm install --omit=dev", "npm run"}, nil
}

// Scripts that serve for development: what they show is static once built.
var devServer = regexp.MustCompile(`^(npx )?(vite|vite dev|vite preview|react-scripts start|webpack serve|webpack-dev-server|parcel|ng serve|astro dev|astro preview|gatsby develop|vue-cli-service serve)(\s|$)`)

// Where build tools put what they make.
var outputs = []struct{ dependency, dir string }{
	{"react-scripts", "build"}, {"gatsby", "public"}, {"@11ty/eleventy", "_site"}, {"@docusaurus/core", "build"},
	{"vite", "dist"}, {"astro", "dist"}, {"parcel", "dist"}, {"@vue/cli-service", "dist"}, {"webpack", "dist"}, {"esbuild", "dist"},
}

func planNode(s *source, p *Plan) error {
	text, err := s.read("package.json")
	if err != nil {
		return err
	}
	var j packageJSON
	if err := json.Unmarshal([]byte(text), &j); err != nil {
		return errs.New(errs.InvalidArgument, "package.json: %w", err)
	}
	p.because("there is a package.json")
	version, err := s.nodeVersion(p, &j)
	if err != nil {
		return err
	}
	m, err := s.nodeManager(p, &j)
	if err != nil {
		return err
	}
	build := s.cfg.Build.Command
	if build != "" {
		p.because("%s says that it is built by %q", s.cfg.File, build)
	} else if b := j.Scripts["build"]; b != "" {
		build = m.run + " build"
		p.because("package.json has a build script: %s", b)
	}
	start, err := s.nodeStart(p, &j, m)
	if err != nil {
		return err
	}

	from := fmt.Sprintf("runtime/node:%s", version)
	p.Bases, p.Generated = []string{from}, true
	files := "package.json"
	if m.lock != "" {
		files += " " + m.lock
	}
	for _, f := range []string{".npmrc", "pnpm-workspace.yaml"} {
		if s.has(f) {
			files += " " + f
		}
	}
	manifests := "COPY " + files + " ./\n"
	if len(j.Workspaces) > 0 || s.has("pnpm-workspace.yaml") {
		manifests = "COPY . .\n" // the manifests are all over the folder
	}
	var b strings.Builder
	install := func(command string) {
		fmt.Fprintf(&b, "%sRUN --mount=type=cache,target=%s %s\n", manifests, m.cache, command)
	}
	fmt.Fprintf(&b, "FROM %s AS base\nENV NPM_CONFIG_UPDATE_NOTIFIER=false NPM_CONFIG_FUND=false NPM_CONFIG_AUDIT=false\nWORKDIR /app\n%s", from, s.args())
	if m.setup != "" {
		fmt.Fprintf(&b, "RUN --mount=type=cache,target=/root/.npm %s\n", m.setup)
	}
	if build != "" {
		b.WriteString("\nFROM base AS build\n")
		install(m.install)
		fmt.Fprintf(&b, "COPY . .\nRUN %s\n", build)
	}
	if start == "" {
		dir, err := s.nodeOutput(p, &j)
		if err != nil {
			return err
		}
		fmt.Fprintf(&b, "\nFROM runtime/static\nCOPY --from=build --chown=%s /app/%s/ /site/\n", owner, dir)
		finishStatic(&b)
		p.Bases = append(p.Bases, "runtime/static")
		p.Dockerfile, p.Services = b.String(), web(appconfig.DefaultPort)
		return nil
	}
	b.WriteString("\nFROM base AS modules\nENV NODE_ENV=production\n")
	install(m.prod)
	// Where there are no dependencies, nothing makes the folder.
	fmt.Fprintf(&b, "RUN mkdir -p node_modules\n\nFROM %s\n%sENV NODE_ENV=production PORT=%d PATH=/app/node_modules/.bin:$PATH\n", from, s.packages(p), appconfig.DefaultPort)
	fmt.Fprintf(&b, "COPY --from=modules --chown=%s /app/node_modules /app/node_modules\nWORKDIR /app\n", owner)
	if build != "" {
		fmt.Fprintf(&b, "COPY --from=build --chown=%s --exclude=node_modules /app ./\n", owner)
	} else {
		fmt.Fprintf(&b, "COPY --chown=%s . .\n", owner)
	}
	fmt.Fprintf(&b, "USER %s\nCMD %s\n", owner, jsonList(appconfig.Shell(start)))
	p.Dockerfile, p.Services = b.String(), web(appconfig.DefaultPort)
	return nil
}

// nodeStart is the command that serves; empty for a site that is static once built.
func (s *source) nodeStart(p *Plan, j *packageJSON, m manager) (string, error) {
	if web := s.cfg.Service(appconfig.DefaultService); web != nil && len(web.Command) > 0 {
		return "node", nil // the service has its own
	}
	start := j.Scripts["start"]
	built := j.Scripts["build"] != "" || s.cfg.Build.Command != ""
	switch {
	case s.cfg.Build.Output != "" && built:
		p.because("%s says that %s is served once it is built", s.cfg.File, s.cfg.Build.Output)
		return "", nil
	case start != "" && !(built && devServer.MatchString(start)):
		p.because("package.json has a start script: %s", start)
		// npm itself would cost memory and half a second, and stand between signals and the app.
		if j.Scripts["prestart"] == "" && j.Scripts["poststart"] == "" && !strings.Contains(start, "$npm_") {
			return start, nil
		}
		return m.run + " start", nil
	case start == "" && j.Main != "" && s.has(strings.TrimPrefix(j.Main, "./")):
		p.because("package.json has no start script; its main file is %s", j.Main)
		return "node " + quote(j.Main), nil
	}
	if start == "" {
		for _, f := range []string{"server.js", "index.js", "app.js", "main.js", "server.mjs", "index.mjs"} {
			if s.has(f) {
				p.because("package.json has no start script; there is %s", f)
				return "node " + f, nil
			}
		}
	}
	if built {
		if start != "" {
			p.because("the start script (%s) is for development: what the build script makes is served as a static site", start)
		} else {
			p.because("there is no start script: what the build script makes is served as a static site")
		}
		return "", nil
	}
	return "", errs.New(errs.InvalidArgument, "package.json has neither a start script nor a main file that exists").
		WithHint("add \"start\" to \"scripts\", or a line `web: <command>` to a Procfile")
}

func (s *source) nodeOutput(p *Plan, j *packageJSON) (string, error) {
	if s.cfg.Build.Output != "" {
		return s.cfg.Build.Output, nil
	}
	for _, o := range outputs {
		if j.depends(o.dependency) {
			p.because("%s puts the site into %s/ (set build.output if it does not)", o.dependency, o.dir)
			return o.dir, nil
		}
	}
	return "", errs.New(errs.InvalidArgument, "it is not known where the build script puts the site").
		WithHint("say so in .runtime/app.toml:\n[build]\noutput = \"dist\"")
}

// nodeVersion is the version for the base image: a major, or what was asked for exactly.
func (s *source) nodeVersion(p *Plan, j *packageJSON) (string, error) {
	if v := s.cfg.Build.Version; v != "" {
		p.because("%s asks for Node.js %s", s.cfg.File, v)
		return strings.TrimPrefix(v, "v"), nil
	}
	for _, f := range []string{".nvmrc", ".node-version"} {
		if !s.has(f) {
			continue
		}
		text, err := s.read(f)
		if err != nil {
			return "", err
		}
		if v := strings.TrimPrefix(strings.TrimSpace(text), "v"); exactVersion.MatchString(v) {
			p.because("%s asks for Node.js %s", f, v)
			return v, nil
		}
	}
	want := strings.TrimSpace(j.Engines.Node)
	if want == "" {
		p.because("no version of Node.js is asked for: %d", defaultNode)
		return fmt.Sprint(defaultNode), nil
	}
	// The default where it fits, else the nearest newer, else the newest older.
	for _, major := range []int{defaultNode, 24, 26, 20, 18, 16, 14} {
		if inRange(want, major) {
			p.because("engines in package.json asks for Node.js %s: %d", want, major)
			return fmt.Sprint(major), nil
		}
	}
	return "", errs.New(errs.InvalidArgument, "engines in package.json asks for Node.js %q, which no known version fits", want)
}

var (
	exactVersion = regexp.MustCompile(`^\d+(\.\d+){0,2}$`)
	comparator   = regexp.MustCompile(`(\^|~|>=|<=|>|<|=)?\s*v?(\d+|[xX*])(?:\.(\d+|[xX*]))?(?:\.(\d+|[xX*]))?(?:-[0-9A-Za-z.]+)?`)
)

// inRange says whether some version of a major line fits an npm range. It
// looks at major versions, and at whether a bound excludes the whole line.
func inRange(want string, major int) bool {
	for alternative := range strings.SplitSeq(want, "||") {
		if low, high, ok := strings.Cut(alternative, " - "); ok {
			alternative = ">=" + strings.TrimSpace(low) + " <=" + strings.TrimSpace(high)
		}
		fits := true
		for _, m := range comparator.FindAllStringSubmatch(alternative, -1) {
			n := 0
			if strings.ContainsAny(m[2], "xX*") {
				continue
			}
			fmt.Sscan(m[2], &n)
			rest := strings.Trim(m[3]+m[4], "0xX*") != "" // a minor or patch version is given
			switch m[1] {
			case ">=":
				fits = fits && major >= n
			case ">":
				fits = fits && (major > n || major == n && rest)
			case "<":
				fits = fits && (major < n || major == n && rest)
			case "<=":
				fits = fits && major <= n
			default:
				fits = fits && major == n
			}
		}
		if fits {
			return true
		}
	}
	return false
}

func jsonList(l []string) string {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(l) // strings into memory
	return strings.TrimSpace(b.String())
}
