package stack

import (
	"cmp"
	"encoding/json"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"miren.dev/runtime/pkg/appconfig"
	"miren.dev/runtime/pkg/errs"
)

// nodeApp is a source with a package.json while its plan is made.
type nodeApp struct {
	s          *source
	p          *Plan
	root       *packageJSON
	app        *packageJSON // of the workspace that is the app; else root
	dir        string       // of app: "." or "apps/web"
	workspaces []string
	m          manager
	lock       string // empty: there is none
	setup      string // installs the package manager; empty: it is there
	build      string // command; empty: nothing is built
	serve      string // command; empty: the built site is static
	serveFrom  string // file that decided serve
	outputFrom string // file that says where the site is built; empty: package.json
	modules    []string
	compile    []string // Debian packages for installing
	run        []string // Debian packages for running, besides those of app.toml
	keepDev    bool     // development dependencies stay
}

func (a *nodeApp) file(name string) string { return path.Join(a.dir, name) }
func (a *nodeApp) has(name string) bool    { return a.s.has(a.file(name)) }

func planNode(s *source, p *Plan) error {
	root, err := s.readPackage(".")
	if err != nil {
		return err
	}
	p.because("there is a package.json")
	a := &nodeApp{s: s, p: p, root: root, app: root, dir: ".", workspaces: s.workspaces(root)}
	if err := a.chooseWorkspace(); err != nil {
		return err
	}
	version, err := s.nodeVersion(p, root)
	if err != nil {
		return err
	}
	a.m, a.lock = s.nodeManager(p, root)
	major := 0
	fmt.Sscan(version, &major)
	a.chooseManager(major)
	a.chooseBuild()
	if a.serve, err = a.start(); err != nil {
		return err
	}
	a.findModules()
	s.saysPackages(p)
	from := "runtime/node:" + version
	p.Bases, p.Generated = []string{from}, true
	return a.write(from)
}

// chooseWorkspace finds the app among the packages of a monorepo.
func (a *nodeApp) chooseWorkspace() error {
	use := func(dir string) (err error) {
		a.dir = dir
		a.app, err = a.s.readPackage(dir)
		return err
	}
	if want := a.s.cfg.Build.Package; want != "" && want != "." {
		if !a.s.has(path.Join(want, "package.json")) {
			return errs.New(errs.InvalidArgument, "there is no %s", path.Join(want, "package.json")).
				WithHint("build.package in %s is the folder of the app's workspace; there are: %s", a.s.cfg.File, strings.Join(a.workspaces, ", "))
		}
		if a.s.cfg.File == "" {
			a.p.because("the app is the workspace %s of the source, which has the lock file", want)
		} else {
			a.p.because("%s says that the app is the workspace %s", a.s.cfg.File, want)
		}
		return use(want)
	}
	if len(a.workspaces) == 0 || a.root.Scripts["start"] != "" || a.root.Main != "" && a.s.has(a.root.Main) || a.s.cfg.Procfile {
		return nil
	}
	var starting []string
	for _, dir := range a.workspaces {
		if j, err := a.s.readPackage(dir); err != nil {
			return err
		} else if j.Scripts["start"] != "" {
			starting = append(starting, dir)
		}
	}
	switch len(starting) {
	case 0:
		return nil
	case 1:
		a.p.because("of the workspaces only %s has a start script: it is the app", starting[0])
		return use(starting[0])
	}
	for _, name := range []string{"web", "server", "app", "site", "api"} {
		if i := slices.IndexFunc(starting, func(d string) bool { return path.Base(d) == name }); i >= 0 {
			a.p.because("the app is the workspace %s, chosen among %s (set build.package to choose another)", starting[i], strings.Join(starting, ", "))
			return use(starting[i])
		}
	}
	return errs.New(errs.InvalidArgument, "several workspaces have a start script and none is obviously the app: %s", strings.Join(starting, ", ")).
		WithHint("say which in .runtime/app.toml:\n[build]\npackage = %q", starting[0])
}

// chooseManager finds out which version of the package manager is used, and where it comes from.
func (a *nodeApp) chooseManager(node int) {
	how := fmt.Sprintf("installed with %s, as %s locks them", a.m.frozen, a.lock)
	if a.lock == "" {
		how = fmt.Sprintf("installed with %s, which chooses their versions anew whenever package.json changes: there is no lock file", a.m.install)
	}
	if len(a.root.Dependencies)+len(a.root.DevDependencies)+len(a.workspaces) > 0 {
		a.p.because("dependencies are %s", how)
	}
	if v := a.s.managerVersion(a.p, a.root, a.m, a.lock, node); v != "" {
		program := a.m.program
		if program == "" {
			program = a.m.name
		}
		a.setup = "npm install -g " + program + "@" + v
		if a.m.program == berryManager.program {
			a.p.because("packages are put into node_modules, not into a .pnp.cjs")
			if strings.HasPrefix(v, "2") || strings.HasPrefix(v, "3") {
				a.m.prune = "" // needs a plugin there
			}
		}
	}
	if a.m.program == "pnpm" && len(a.workspaces) > 0 {
		a.m.prune = "" // only the root's
	}
}

func (a *nodeApp) chooseBuild() {
	switch command := a.s.cfg.Build.Command; {
	case command != "":
		a.build = command
		a.p.because("%s says that it is built by %q", a.s.cfg.File, command)
		a.p.fact(FactBuild, command, a.s.cfg.File)
	case a.root.Scripts["build"] != "":
		a.build = a.m.run + " build"
		a.p.because("package.json has a build script: %s", a.root.Scripts["build"])
		a.p.fact(FactBuild, a.build, "package.json")
	case a.app.Scripts["build"] != "":
		a.build = "cd " + quote(a.dir) + " && " + a.m.run + " build"
		a.p.because("%s has a build script: %s", a.file("package.json"), a.app.Scripts["build"])
		a.p.fact(FactBuild, a.build, a.file("package.json"))
	}
}

// findModules finds the modules that need something of Debian.
func (a *nodeApp) findModules() {
	git := false
	for _, dir := range append([]string{"."}, a.workspaces...) {
		j, err := a.s.readPackage(dir)
		if err != nil {
			continue // installing will say it better
		}
		for _, list := range []map[string]string{j.Dependencies, j.OptionalDependencies, j.DevDependencies} {
			for name, version := range list {
				a.modules = append(a.modules, name)
				git = git || fromGit.MatchString(version)
			}
		}
	}
	a.modules = unique(a.modules)
	build, run, which := needs(nativeNode, a.modules)
	if a.lock != "" && len(build) == 0 {
		if text, err := a.s.read(a.lock); err == nil {
			if m := compiles.FindStringSubmatch(text); m != nil {
				build, which = append(build, nodeCompiler...), append(which, "what depends on "+m[2])
			}
		}
	}
	if len(build) > 0 {
		a.p.because("%s: installed with %s", strings.Join(which, ", "), words(build))
	}
	if len(run) > 0 {
		a.p.because("%s: run with %s", strings.Join(which, ", "), words(run))
	}
	if git {
		build = append(build, gitClient...)
		a.p.because("dependencies come from git repositories: installed with git")
	}
	a.compile, a.run = build, run
}

// commands are those that run in the image.
func (a *nodeApp) commands() []string {
	var all []string
	if web := a.s.cfg.Service(appconfig.DefaultService); web == nil || len(web.Command) == 0 {
		all = append(all, a.serve)
	}
	for _, svc := range a.s.cfg.Services {
		all = append(all, commandLine(svc.Command))
	}
	return append(all, commandLine(a.p.Release))
}

// commandLine is what a command says, without the shell that appconfig.Shell puts before it.
func commandLine(command []string) string {
	if len(command) == 3 && command[0] == "/bin/sh" {
		return strings.TrimPrefix(command[2], "exec ")
	}
	return words(command)
}

// nodeFiles that installing reads, besides package.json and the lock file.
var (
	installFiles   = []string{".npmrc", ".yarnrc", ".yarnrc.yml", "pnpm-workspace.yaml", ".pnpmfile.cjs", "bunfig.toml"}
	installFolders = []string{".yarn", "patches", "prisma"}
)

// maxManifests bounds the workspaces whose package.json is copied by itself.
const maxManifests = 60

// manifests are the lines that copy what installing reads, and whether that is less than everything.
func (a *nodeApp) manifests() (lines string, apart bool) {
	everything := "COPY . .\n"
	if len(a.workspaces) > maxManifests {
		return everything, false
	}
	files := []string{"package.json"}
	if a.lock != "" {
		files = append(files, a.lock)
	}
	for _, f := range installFiles {
		if a.s.has(f) {
			files = append(files, f)
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "COPY %s ./\n", words(files))
	for _, d := range installFolders {
		if a.s.isDir(d) {
			fmt.Fprintf(&b, "COPY %s ./%s\n", d, d)
		}
	}
	for _, dir := range append([]string{"."}, a.workspaces...) {
		j, err := a.s.readPackage(dir)
		if err != nil || a.local(j) || dir != "." && a.installs(j) {
			return everything, false
		}
		if dir != "." {
			if !plainPath.MatchString(dir) {
				return everything, false
			}
			fmt.Fprintf(&b, "COPY %s/package.json ./%s/\n", dir, dir)
		}
	}
	return b.String(), true
}

var plainPath = regexp.MustCompile(`^[\w@./-]+$`)

// local says whether a package depends on folders of the source that are no workspaces.
func (a *nodeApp) local(j *packageJSON) bool {
	for _, list := range []map[string]string{j.Dependencies, j.OptionalDependencies, j.DevDependencies} {
		for _, version := range list {
			if strings.HasPrefix(version, "file:") || strings.HasPrefix(version, "link:") || strings.HasPrefix(version, "portal:") {
				return true
			}
		}
	}
	return false
}

// hookInstaller is a script that only prepares a clone of the repository for people.
var hookInstaller = regexp.MustCompile(`^(npx )?(husky( install)?|lefthook install|simple-git-hooks|pre-commit install|is-ci \|\| husky( install)?)( \|\| (true|exit 0|:))?$`)

// installs says whether a package has scripts that run when it is installed.
func (a *nodeApp) installs(j *packageJSON) bool { return len(a.scriptsOf(j)) > 0 }

// scriptsOf are the names of a package's scripts that run when it is installed, in their order.
func (a *nodeApp) scriptsOf(j *packageJSON) []string {
	return slices.DeleteFunc(slices.Clone(a.m.scripts), func(name string) bool {
		script := strings.TrimSpace(j.Scripts[name])
		return script == "" || hookInstaller.MatchString(script)
	})
}

// withoutScripts is a command that takes the install scripts out of package.json: they need the sources, which are
// not there yet.
const withoutScripts = `node -e 'const fs=require("fs"),f="package.json",p=JSON.parse(fs.readFileSync(f));` +
	`for(const s of ["preinstall","install","postinstall","prepublish","preprepare","prepare","postprepare"])delete(p.scripts||{})[s];` +
	`fs.writeFileSync(f,JSON.stringify(p,null,2))'`

// write makes the Dockerfile.
func (a *nodeApp) write(from string) error {
	s, p := a.s, a.p
	scripts := a.scriptsOf(a.root)
	var dev []string
	hasDev := len(a.root.DevDependencies) > 0
	for _, dir := range a.workspaces {
		if j, err := s.readPackage(dir); err == nil {
			hasDev = hasDev || len(j.DevDependencies) > 0
			if a.installs(j) {
				scripts = append(scripts, dir)
			}
		}
	}
	if a.serve != "" {
		dev = a.devNeeded(a.commands())
	}
	a.keepDev = len(dev) > 0
	all := a.build != "" || len(scripts) > 0 || a.keepDev || a.serve == "" || hasDev && a.m.prod == ""
	// Packages of one workspace alone are in its folder.
	built := all || len(a.workspaces) > 0

	var b strings.Builder
	fmt.Fprintf(&b, "FROM %s AS base\nENV NPM_CONFIG_UPDATE_NOTIFIER=false NPM_CONFIG_FUND=false NPM_CONFIG_AUDIT=false\nWORKDIR /app\n%s", from, s.args())
	if a.setup != "" {
		fmt.Fprintf(&b, "RUN --mount=type=cache,target=/root/.npm %s\n", a.setup)
	}
	b.WriteString("\nFROM base AS build\n" + s.packages(a.compile...))
	b.WriteString("ENV HUSKY=0") // hooks of git are for people
	if len(a.compile) > 0 {
		b.WriteString(" npm_config_nodedir=/usr/local") // node-gyp finds the headers in the image
	}
	b.WriteString("\n" + a.m.env)
	a.writeInstall(&b, all)
	if built {
		a.writeBuild(&b, all && hasDev, dev)
	}
	if a.serve == "" {
		return a.writeStatic(&b)
	}
	a.writeRun(&b, from, built)
	if web := s.cfg.Service(appconfig.DefaultService); web == nil || len(web.Command) == 0 {
		p.fact(FactStart, a.serve, a.serveFrom)
	}
	p.Dockerfile, p.Services = b.String(), web(s.port(p, nodeListener, a.entry()...))
	return nil
}

// writeInstall installs the dependencies: all of them, or those that are needed to run.
func (a *nodeApp) writeInstall(b *strings.Builder, all bool) {
	install := a.m.install
	if a.lock != "" {
		install = a.m.frozen
	}
	if !all && a.m.prod != "" {
		install = "NODE_ENV=production " + install + " " + a.m.prod
	}
	a.p.fact(FactInstall, strings.TrimPrefix(install, "NODE_ENV=production "), cmp.Or(a.lock, "package.json"))
	lines, apart := a.manifests()
	b.WriteString(lines)
	if apart && len(a.root.Scripts) > 0 && slices.ContainsFunc(a.m.scripts, func(name string) bool { return a.root.Scripts[name] != "" }) {
		fmt.Fprintf(b, "RUN %s\n", withoutScripts)
	}
	// Where there are no dependencies, nothing makes the folder.
	fmt.Fprintf(b, "RUN %s %s && mkdir -p node_modules\n", a.m.mount(), install)
}

// writeBuild copies the source, runs the scripts that installing leaves out, builds, and removes what running does
// not need.
func (a *nodeApp) writeBuild(b *strings.Builder, hasDev bool, dev []string) {
	p := a.p
	if _, apart := a.manifests(); apart {
		b.WriteString("COPY . .\n")
		scripts := a.scriptsOf(a.root)
		for _, name := range scripts {
			fmt.Fprintf(b, "RUN %s %s\n", a.m.run, name)
		}
		if len(scripts) > 0 {
			p.because("the scripts %s run once the sources are there, with development dependencies", strings.Join(scripts, ", "))
		}
	}
	if a.build != "" {
		fmt.Fprintf(b, "RUN %s\n", a.build)
	}
	switch {
	case !hasDev || a.serve == "":
	case a.keepDev:
		p.because("development dependencies stay: what runs needs %s", strings.Join(dev, ", "))
	case a.m.prune == "":
		p.because("development dependencies stay: %s cannot remove them here", a.m.name)
	default:
		p.because("development dependencies are removed after the build")
		fmt.Fprintf(b, "RUN %s %s && mkdir -p node_modules\n", a.m.mount(), a.m.prune)
	}
}

// writeStatic ends with a stage that serves the built site.
func (a *nodeApp) writeStatic(b *strings.Builder) error {
	dir, fallback, err := a.output()
	if err != nil {
		return err
	}
	a.p.fact(FactStart, "files of "+path.Join(a.dir, dir)+"/", cmp.Or(a.outputFrom, a.file("package.json")))
	fmt.Fprintf(b, "\nFROM runtime/static\nCOPY --from=build --chown=%s %s/ /site/\n", owner, path.Join("/app", a.dir, dir))
	finishStatic(b, fallback)
	a.p.Bases = append(a.p.Bases, "runtime/static")
	a.p.Dockerfile, a.p.Services = b.String(), web(appconfig.DefaultPort)
	return nil
}

// writeRun ends with the stage that runs: dependencies and app are layers of their own, so that a change of the
// source leaves the larger one as it is.
func (a *nodeApp) writeRun(b *strings.Builder, from string, built bool) {
	if a.setup != "" && usesManager(a.m, a.commands()) {
		from = "base"
	}
	bins := "/app/node_modules/.bin"
	if a.dir != "." {
		bins = path.Join("/app", a.dir, "node_modules/.bin") + ":" + bins
	}
	fmt.Fprintf(b, "\nFROM %s\n%sENV NODE_ENV=production PORT=%d PATH=%s:$PATH\n", from, a.s.packages(a.run...), appconfig.DefaultPort, bins)
	// COPY makes /app for its owner; WORKDIR would make it for root.
	fmt.Fprintf(b, "COPY --from=build --chown=%s /app/node_modules /app/node_modules\n", owner)
	if built {
		fmt.Fprintf(b, "COPY --from=build --chown=%s --exclude=node_modules /app /app/\n", owner)
	} else {
		fmt.Fprintf(b, "COPY --chown=%s . /app/\n", owner)
	}
	fmt.Fprintf(b, "WORKDIR %s\nUSER %s\nCMD %s\n", path.Join("/app", a.dir), owner, jsonList(appconfig.Shell(a.serve)))
}

func jsonList(l []string) string {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(l) // strings into memory
	return strings.TrimSpace(b.String())
}
