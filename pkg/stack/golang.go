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
)

// Modules that work only with cgo.
var cgoModules = []string{"github.com/mattn/go-sqlite3", "github.com/confluentinc/confluent-kafka-go", "github.com/ebitengine/", "gocv.io/x/gocv", "github.com/h2non/bimg"}

func planGo(s *source, p *Plan) error {
	mod, err := s.read("go.mod")
	if err != nil {
		return err
	}
	m := goLine.FindStringSubmatch(mod)
	version := s.cfg.Build.Version
	switch {
	case version != "":
		p.because("go.mod is there; %s asks for Go %s", s.cfg.File, version)
	case m != nil:
		version = m[1]
		p.because("go.mod asks for Go %s", m[1]+m[2])
	default:
		return errs.New(errs.InvalidArgument, "go.mod has no go line").WithHint("run `go mod tidy` with a recent Go")
	}
	found, err := s.findGo()
	if err != nil {
		return err
	}
	pkg, err := s.mainPackage(p, mod, found)
	if err != nil {
		return err
	}
	cgo := found.cgo
	for _, c := range cgoModules {
		if strings.Contains(mod, c) {
			cgo = c
		}
	}
	image, env := "runtime/go", "CGO_ENABLED=0"
	if cgo != "" {
		image, env = "runtime/go-cgo", "CGO_ENABLED=1"
		p.because("%s needs cgo: built with a C compiler", cgo)
	}
	// A language version below what the toolchain modules offer is built by a newer Go.
	if goOlder(version, "1.21") {
		p.because("built with Go 1.26, which understands Go %s", version)
		version = "1.26"
	}

	vendored := s.has("vendor/modules.txt")
	from, run := image+":"+version, "runtime/debian"
	// The cache of compiled packages begins with the standard library's, which the image has.
	caches := "--mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/root/.cache/go-build,from=" + from + ",source=/usr/local/go-build-cache"
	var b strings.Builder
	fmt.Fprintf(&b, "FROM %s AS build\nENV %s GOFLAGS=-buildvcs=false\nWORKDIR /src\n%s", from, env, s.args())
	if vendored {
		p.because("vendor/ is there: no modules are downloaded")
	} else {
		files := "go.mod"
		for _, f := range []string{"go.sum", "go.work", "go.work.sum"} {
			if s.has(f) {
				files += " " + f
			}
		}
		if !strings.Contains(files, "go.work") && !localReplace(mod) {
			fmt.Fprintf(&b, "COPY %s ./\nRUN --mount=type=cache,target=/go/pkg/mod go mod download\n", files)
		}
	}
	fmt.Fprintf(&b, "COPY . .\nRUN %s go build -trimpath -ldflags='-s -w' -o /out/%s %s\n\n", caches, base(pkg.binary), quote(pkg.path))
	fmt.Fprintf(&b, "FROM %s\n%s", run, s.packages(p))
	// Templates, static files and the like are next to the binary.
	fmt.Fprintf(&b, "COPY --chown=%s --exclude=**/*.go --exclude=go.mod --exclude=go.sum --exclude=vendor . /app/\nWORKDIR /app\nCOPY --from=build /out/%[2]s /usr/local/bin/%[2]s\n", owner, base(pkg.binary))
	fmt.Fprintf(&b, "ENV PORT=%d\nUSER %s\nCMD [\"/usr/local/bin/%s\"]\n", appconfig.DefaultPort, owner, base(pkg.binary))

	p.Dockerfile, p.Generated = b.String(), true
	p.Bases = []string{from, run}
	p.Services = web(appconfig.DefaultPort)
	return nil
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

// findGo looks at the package clause and imports of every Go file.
func (s *source) findGo() (*goFound, error) {
	found := &goFound{}
	dirs := 0
	err := fs.WalkDir(s, ".", func(name string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if e.IsDir() {
			b := path.Base(name)
			if name != "." && (b == "vendor" || b == "testdata" || b == "node_modules" || strings.HasPrefix(b, ".") || strings.HasPrefix(b, "_") || s.has(name+"/go.mod")) {
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

// goPackage is a main package and the name of its binary.
type goPackage struct{ path, binary string }

// mainPackage chooses the main package and says why.
func (s *source) mainPackage(p *Plan, mod string, found *goFound) (goPackage, error) {
	module := "app"
	if m := moduleLine.FindStringSubmatch(mod); m != nil {
		module = path.Base(m[1])
	}
	named := func(dir string) goPackage {
		if dir == "." {
			return goPackage{".", module}
		}
		return goPackage{"./" + dir, path.Base(dir)}
	}
	if want := s.cfg.Build.Package; want != "" {
		p.because("%s says that the main package is ./%s", s.cfg.File, want)
		return named(want), nil
	}
	mains := found.mains
	slices.Sort(mains)
	switch {
	case len(mains) == 0:
		return goPackage{}, errs.New(errs.InvalidArgument, "go.mod is there, but no main package").
			WithHint("looked for `package main` in every folder; is it ignored by .gitignore?")
	case len(mains) == 1:
		g := named(mains[0])
		p.because("the main package is %s", g.path)
		return g, nil
	}
	// Of several: the root, then the one named like the service, the app or the module.
	choice := ""
	prefer := []string{".", "cmd/web", "cmd/server", "cmd/" + s.cfg.Name, "cmd/" + module, "web", "server", "cmd/api", "cmd/app"}
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
