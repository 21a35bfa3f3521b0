package stack

import (
	"cmp"
	"fmt"
	"go/build/constraint"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"

	"miren.dev/runtime/pkg/appconfig"
	"miren.dev/runtime/pkg/errs"
)

// Bounds of the search for main packages.
const (
	maxGoDirs = 5000
	maxMains  = 50
)

var (
	goLine     = regexp.MustCompile(`(?m)^go\s+(\d+\.\d+)(\.\d+)?`)
	moduleLine = regexp.MustCompile(`(?m)^module\s+"?([^\s"]+)`)
	// majorVersion is the end of a module's path that is no part of its name.
	majorVersion = regexp.MustCompile(`/v[0-9]+$`)
)

// Modules that work only with cgo.
var cgoModules = []string{"github.com/mattn/go-sqlite3", "github.com/confluentinc/confluent-kafka-go", "github.com/ebitengine/", "gocv.io/x/gocv", "github.com/h2non/bimg"}

func hasGo(s *source) bool { return s.has("go.mod") || s.has("go.work") }

// DefaultGo is the version of Go that understands all older language versions.
const DefaultGo = "1.26"

// goModules are the modules of a source: that of the folder, or those of a workspace.
type goModules struct {
	file string   // that says the version: go.mod or go.work
	text string   // of that file
	dirs []string // of the modules: ".", or as go.work says
	mods string   // the texts of all go.mod
}

var workUse = regexp.MustCompile(`(?m)^\s*(?:use\s+)?"?(\.[\w./-]*)"?\s*(?://.*)?$`)

func (s *source) goModules() (*goModules, error) {
	g := &goModules{file: "go.mod", dirs: []string{"."}}
	if s.has("go.work") {
		g.file, g.dirs = "go.work", nil
	}
	var err error
	if g.text, err = s.read(g.file); err != nil {
		return nil, err
	}
	if g.file == "go.work" {
		for _, m := range workUse.FindAllStringSubmatch(g.text, -1) {
			dir := path.Clean(m[1])
			if !fs.ValidPath(dir) || !s.has(path.Join(dir, "go.mod")) {
				return nil, errs.New(errs.InvalidArgument, "go.work uses %s, which has no go.mod here", m[1]).
					WithHint("deploy from the folder that has all modules of the workspace; is it ignored by .gitignore?")
			}
			g.dirs = append(g.dirs, dir)
		}
		if len(g.dirs) == 0 {
			return nil, errs.New(errs.InvalidArgument, "go.work uses no module").WithHint("run `go work use <folder>`")
		}
	}
	for _, dir := range g.dirs {
		text, err := s.read(path.Join(dir, "go.mod"))
		if err != nil {
			return nil, err
		}
		g.mods += text + "\n"
	}
	return g, nil
}

func planGo(s *source, p *Plan) error {
	modules, err := s.goModules()
	if err != nil {
		return err
	}
	m := goLine.FindStringSubmatch(modules.text)
	version := strings.TrimPrefix(s.cfg.Build.Version, "go")
	switch {
	case version != "":
		p.because("%s is there; %s asks for Go %s", modules.file, s.cfg.File, version)
	case m != nil:
		version = m[1]
		p.because("%s asks for Go %s: the newest %s", modules.file, m[1]+m[2], m[1])
	default:
		return errs.New(errs.InvalidArgument, "%s has no go line", modules.file).WithHint("run `go mod tidy` with a recent Go")
	}
	if len(modules.dirs) > 1 {
		p.because("it is a workspace of the modules %s", strings.Join(modules.dirs, ", "))
	}
	found, err := s.findGo(modules.dirs)
	if err != nil {
		return err
	}
	pkg, err := s.mainPackage(p, modules, found)
	if err != nil {
		return err
	}
	cgo := found.cgo
	for _, c := range cgoModules {
		if strings.Contains(modules.mods, c) {
			cgo = c
		}
	}
	image, env := "runtime/go", "CGO_ENABLED=0"
	if cgo != "" {
		image, env = "runtime/go-cgo", "CGO_ENABLED=1"
		p.because("%s needs cgo: built with a C compiler", cgo)
	}
	s.saysPackages(p)
	// A language version below what the toolchain modules offer is built by a newer Go.
	if goOlder(version, "1.21") {
		p.because("built with Go %s, which understands Go %s", DefaultGo, version)
		version = DefaultGo
	}

	versionFrom := modules.file
	if s.cfg.Build.Version != "" {
		versionFrom = s.cfg.File
	}
	p.fact(FactVersion, "Go "+version, versionFrom)
	vendored := s.has("vendor/modules.txt")
	from, run := image+":"+version, "runtime/debian"
	// The cache of compiled packages begins with the standard library's, which the image has.
	caches := "--mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/root/.cache/go-build,from=" + from + ",source=/usr/local/go-build-cache"
	var b strings.Builder
	fmt.Fprintf(&b, "FROM %s AS build\nENV %s GOFLAGS=-buildvcs=false\nWORKDIR /src\n%s", from, env, s.args())
	if cgo != "" {
		b.WriteString(s.packages())
	}
	if vendored {
		p.because("vendor/ is there: no modules are downloaded")
		p.fact(FactInstall, "none", "vendor/modules.txt")
	} else if lines := s.goManifests(modules); lines != "" {
		p.fact(FactInstall, "go mod download", modules.file)
		fmt.Fprintf(&b, "%sRUN --mount=type=cache,target=/go/pkg/mod go mod download\n", lines)
	}
	b.WriteString("COPY . .\n")
	binaries := append([]goPackage{pkg}, s.otherBinaries(p, pkg, modules, found)...)
	for _, o := range binaries {
		fmt.Fprintf(&b, "RUN %s go build -trimpath -ldflags='-s -w' -o /out/%s %s\n", caches, base(o.binary), quote(o.path))
	}
	b.WriteString("\n")
	fmt.Fprintf(&b, "FROM %s\n%s", run, s.packages())
	// Templates, static files and the like are next to the binary.
	fmt.Fprintf(&b, "COPY --from=build --chown=%s --exclude=**/*.go --exclude=**/go.mod --exclude=**/go.sum --exclude=go.work* --exclude=vendor /src/ /app/\nWORKDIR %s\n",
		owner, path.Join("/app", pkg.module))
	if dir := s.binaryFolder(binaries); dir != "" {
		p.because("commands of the services look for the program in %s/: it is there too", dir)
		fmt.Fprintf(&b, "COPY --from=build --chown=%s /out/ ./%s/\n", owner, dir)
	}
	for _, o := range binaries {
		fmt.Fprintf(&b, "COPY --from=build /out/%[1]s /usr/local/bin/%[1]s\n", base(o.binary))
	}
	fmt.Fprintf(&b, "ENV PORT=%d\nUSER %s\nCMD [\"/usr/local/bin/%s\"]\n", appconfig.DefaultPort, owner, base(pkg.binary))

	p.Dockerfile, p.Generated = b.String(), true
	for _, o := range binaries {
		p.fact(FactBuild, env+" go build "+quote(o.path), modules.file)
	}
	p.fact(FactStart, "/usr/local/bin/"+base(pkg.binary), pkg.path)
	p.Bases = []string{from, run}
	p.Services = web(s.port(p, goListener, s.goEntry(pkg)...))
	return nil
}

// goManifests are the lines that copy what a download of modules reads; empty where that is more than manifests.
func (s *source) goManifests(modules *goModules) string {
	if localReplace(modules.mods) {
		return ""
	}
	var b strings.Builder
	if modules.file == "go.work" {
		fmt.Fprintf(&b, "COPY %s ./\n", words(s.there("go.work", "go.work.sum")))
	}
	for _, dir := range modules.dirs {
		if !plainPath.MatchString(dir) {
			return ""
		}
		files := s.there(path.Join(dir, "go.mod"), path.Join(dir, "go.sum"))
		to := "./"
		if dir != "." {
			to += dir + "/"
		}
		fmt.Fprintf(&b, "COPY %s %s\n", words(files), to)
	}
	return b.String()
}

// localReplace says that go.mod points to folders of the source, which must be there for a download.
func localReplace(mod string) bool {
	return strings.Contains(mod, "=> ./") || strings.Contains(mod, "=> ../")
}

func goOlder(a, b string) bool {
	var x, y [2]int
	fmt.Sscanf(a, "%d.%d", &x[0], &x[1])
	fmt.Sscanf(b, "%d.%d", &y[0], &y[1])
	return cmp.Or(cmp.Compare(x[0], y[0]), cmp.Compare(x[1], y[1])) < 0
}

// goFound is what the source's Go files say.
type goFound struct {
	mains []string // folders of main packages: ".", "cmd/web"
	cgo   string   // a file that imports C
}

// findGo looks at the package clause and imports of every Go file of the modules.
func (s *source) findGo(modules []string) (*goFound, error) {
	found := &goFound{}
	dirs := 0
	err := fs.WalkDir(s, ".", func(name string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if e.IsDir() {
			b := path.Base(name)
			if name != "." && (b == "vendor" || b == "testdata" || b == "node_modules" || strings.HasPrefix(b, ".") || strings.HasPrefix(b, "_") || s.has(name+"/go.mod") && !slices.Contains(modules, name)) {
				return fs.SkipDir
			}
			if dirs++; dirs > maxGoDirs {
				return errs.New(errs.ResourceExhausted, "the source has more than %d folders", maxGoDirs)
			}
			return nil
		}
		if !e.Type().IsRegular() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") || !forLinux(name) {
			return nil
		}
		text, err := s.read(name)
		if err != nil || excluded(text) {
			return err
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, text, parser.ImportsOnly)
		if err != nil || f.Name == nil {
			return nil // the compiler will say it better
		}
		for _, i := range f.Imports {
			if i.Path.Value == `"C"` {
				found.cgo = name
			}
		}
		if dir := path.Dir(name); f.Name.Name == "main" && !slices.Contains(found.mains, dir) && len(found.mains) < maxMains {
			found.mains = append(found.mains, dir)
		}
		return nil
	})
	if err != nil {
		return nil, errs.Wrap(err, "look for Go packages")
	}
	return found, nil
}

// forLinux says whether the name of a file lets it be built for Linux.
func forLinux(name string) bool {
	stem := strings.TrimSuffix(path.Base(name), ".go")
	for _, os := range []string{"windows", "darwin", "freebsd", "openbsd", "netbsd", "plan9", "js", "wasip1", "android", "ios", "solaris", "aix"} {
		if strings.HasSuffix(stem, "_"+os) || strings.Contains(stem, "_"+os+"_") {
			return false
		}
	}
	return true
}

// excluded says whether a file's build constraint keeps it out of a build for
// Linux without further tags, as "//go:build ignore" does.
func excluded(text string) bool {
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "package ") {
			return false
		}
		if !constraint.IsGoBuild(line) {
			continue
		}
		x, err := constraint.Parse(line)
		return err == nil && !x.Eval(func(tag string) bool {
			return tag == "linux" || tag == "unix" || tag == "amd64" || tag == "arm64" || tag == "cgo" || tag == "gc" || strings.HasPrefix(tag, "go1.")
		})
	}
	return false
}

// goPackage is a main package, the folder of its module, and the name of its binary.
type goPackage struct{ path, module, binary string }

// named is the main package in a folder. Its binary has the folder's name, at the root that of the module.
func (modules *goModules) named(dir, module string) goPackage {
	g := goPackage{path: ".", module: ".", binary: module}
	if dir != "." {
		g.path, g.binary = "./"+dir, path.Base(dir)
	}
	for _, m := range modules.dirs {
		if (dir == m || strings.HasPrefix(dir, m+"/")) && len(m) > len(g.module) {
			g.module = m
		}
	}
	return g
}

// mainPackage chooses the main package and says why.
func (s *source) mainPackage(p *Plan, modules *goModules, found *goFound) (goPackage, error) {
	module := "app"
	if m := moduleLine.FindStringSubmatch(modules.mods); m != nil && len(modules.dirs) == 1 {
		module = path.Base(majorVersion.ReplaceAllString(m[1], ""))
	}
	named := func(dir string) goPackage { return modules.named(dir, module) }
	if want := s.cfg.Build.Package; want != "" {
		p.because("%s says that the main package is ./%s", s.cfg.File, want)
		return named(want), nil
	}
	mains := found.mains
	slices.Sort(mains)
	switch {
	case len(mains) == 0:
		return goPackage{}, errs.New(errs.InvalidArgument, "%s is there, but no main package", modules.file).
			WithHint("looked for `package main` in every folder; is it ignored by .gitignore?")
	case len(mains) == 1:
		g := named(mains[0])
		p.because("the main package is %s", g.path)
		return g, nil
	}
	// Of several: what the service web runs, the root, then the one named like the service, the app or the module.
	choice := ""
	prefer := []string{".", "cmd/web", "cmd/server", "cmd/" + s.cfg.Name, "cmd/" + module, s.cfg.Name, "web", "server", "cmd/api", "cmd/app", "app", "api"}
	for _, m := range mains {
		if web := s.programs()[appconfig.DefaultService]; web != "" && path.Base(web) == path.Base(m) {
			choice, prefer = m, nil
			p.because("the service web runs %s", web)
		}
	}
	for _, want := range prefer {
		if slices.Contains(mains, want) {
			choice = want
			break
		}
	}
	if choice == "" {
		var inCmd []string
		for _, m := range mains {
			if strings.HasPrefix(m, "cmd/") && strings.Count(m, "/") == 1 {
				inCmd = append(inCmd, m)
			}
		}
		if len(inCmd) != 1 {
			return goPackage{}, errs.New(errs.InvalidArgument, "there are several main packages and none is obviously the app: %s", strings.Join(mains, ", ")).
				WithHint("say which in .runtime/app.toml:\n[build]\npackage = \"./%s\"", mains[0])
		}
		choice = inCmd[0]
	}
	g := named(choice)
	others := slices.DeleteFunc(slices.Clone(mains), func(m string) bool { return m == choice })
	p.because("the main package is %s, chosen before %s (set build.package to choose another)", g.path, strings.Join(others, ", "))
	return g, nil
}
