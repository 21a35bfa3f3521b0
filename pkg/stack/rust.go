package stack

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"

	"miren.dev/runtime/pkg/appconfig"
	"miren.dev/runtime/pkg/errs"
)

func hasRust(s *source) bool { return s.has("Cargo.toml") }

// cargoTOML is what matters of a Cargo.toml.
type cargoTOML struct {
	Package *struct {
		Name        string `toml:"name"`
		RustVersion any    `toml:"rust-version"` // a text, or the workspace's
		DefaultRun  string `toml:"default-run"`
	} `toml:"package"`
	Bin []struct {
		Name string `toml:"name"`
		Path string `toml:"path"`
	} `toml:"bin"`
	Workspace *struct {
		Members []string `toml:"members"`
		Package struct {
			RustVersion string `toml:"rust-version"`
		} `toml:"package"`
	} `toml:"workspace"`
}

// nativeRust are crates that use a library of the system, by their names in the lock file.
var nativeRust = map[string]native{
	"pq-sys":          {build: []string{"libpq-dev"}, run: []string{"libpq5"}},
	"mysqlclient-sys": {build: []string{"default-libmysqlclient-dev"}, run: []string{"libmariadb3"}},
	"libsqlite3-sys":  {build: []string{"libsqlite3-dev"}, run: []string{"libsqlite3-0"}},
	"rdkafka-sys":     {build: []string{"cmake"}},
	"aws-lc-sys":      {build: []string{"cmake"}},
	"prost-build":     {build: []string{"protobuf-compiler"}},
	"bindgen":         {build: []string{"clang", "libclang-dev"}},
	"zstd-sys":        {},
}

var (
	lockedCrate  = regexp.MustCompile(`(?m)^name = "([\w-]+)"`)
	rustChannel  = regexp.MustCompile(`(?m)^\s*channel\s*=\s*"([^"]+)"|^\s*(nightly[\w-]*|beta|stable|\d+\.\d+(?:\.\d+)?)\s*$`)
	leadingMinor = regexp.MustCompile(`^\d+\.\d+`)
)

func planRust(s *source, p *Plan) error {
	root, err := s.readCargo("Cargo.toml")
	if err != nil {
		return err
	}
	name, where, err := s.rustBinary(p, root)
	if err != nil {
		return err
	}
	tag, err := s.rustVersion(p, root)
	if err != nil {
		return err
	}
	var crates []string
	lock := s.first("Cargo.lock")
	if lock != "" {
		text, err := s.read(lock)
		if err != nil {
			return err
		}
		for _, m := range lockedCrate.FindAllStringSubmatch(text, -1) {
			crates = append(crates, m[1])
		}
	}
	compile, run, which := needs(nativeRust, unique(crates))
	if len(compile) > 0 {
		p.because("%s: built with %s, run with %s", strings.Join(which, ", "), none(compile), none(run))
	}
	s.saysPackages(p)
	build := "cargo build --release"
	if lock != "" {
		build += " --locked"
		p.because("crates are those that Cargo.lock says")
	} else {
		p.because("crates are chosen anew by Cargo: there is no Cargo.lock")
	}
	build += " --bin " + quote(name)
	from, image := "runtime/rust"+tag, "runtime/rust-run"+tag
	var b strings.Builder
	fmt.Fprintf(&b, "FROM %s AS build\nENV SQLX_OFFLINE=true CARGO_TERM_COLOR=never\n%s%sWORKDIR /src\nCOPY . .\n", from, s.args(), s.packages(compile...))
	if c := s.cfg.Build.Command; c != "" {
		p.because("%s says that %q is run before it is compiled", s.cfg.File, c)
		p.fact(FactBuild, c, s.cfg.File)
		fmt.Fprintf(&b, "RUN %s\n", c)
	}
	fmt.Fprintf(&b, "RUN --mount=type=cache,target=/root/.cargo/registry --mount=type=cache,target=/root/.cargo/git --mount=type=cache,target=/src/target,sharing=locked "+
		"%s && install -D target/release/%s /out/%s\n", build, quote(name), quote(name))
	// Templates, static files and the like are next to the binary.
	fmt.Fprintf(&b, "\nFROM %s\n%sCOPY --from=build --chown=%s --exclude=**/*.rs --exclude=**/Cargo.toml --exclude=Cargo.lock --exclude=target --exclude=.cargo /src/ /app/\nWORKDIR /app\n", image, s.packages(run...), owner)
	fmt.Fprintf(&b, "COPY --from=build /out/ /usr/local/bin/\nENV PORT=%d", appconfig.DefaultPort)
	command := "exec /usr/local/bin/" + quote(name)
	if slices.Contains(crates, "rocket") {
		p.because("rocket is among the crates: ROCKET_ADDRESS and ROCKET_PORT are set")
		b.WriteString(" ROCKET_ADDRESS=0.0.0.0")
		command = "ROCKET_PORT=$PORT " + command
	}
	fmt.Fprintf(&b, "\nUSER %s\nCMD %s\n", owner, jsonList([]string{"/bin/sh", "-c", command}))
	p.fact(FactBuild, build, where)
	p.fact(FactStart, "/usr/local/bin/"+name, where)
	dir := path.Dir(where)
	entry := s.there(path.Join(dir, "src/bin", name+".rs"), path.Join(dir, "src/main.rs"))
	p.Dockerfile, p.Generated, p.Services = b.String(), true, web(s.port(p, rustListener, entry[:min(1, len(entry))]...))
	p.Bases = []string{from, image}
	return nil
}

func (s *source) readCargo(file string) (*cargoTOML, error) {
	text, err := s.read(file)
	if err != nil {
		return nil, err
	}
	c := &cargoTOML{}
	if _, err := toml.Decode(text, c); err != nil {
		return nil, errs.New(errs.InvalidArgument, "%s: %w", file, err)
	}
	return c, nil
}

// binaries are the names of the programs of a package in a folder.
func (s *source) binaries(c *cargoTOML, dir string) []string {
	var names []string
	if c.Package == nil {
		return nil
	}
	for _, b := range c.Bin {
		names = append(names, b.Name)
	}
	if s.has(path.Join(dir, "src/main.rs")) && !slices.ContainsFunc(c.Bin, func(b struct {
		Name string `toml:"name"`
		Path string `toml:"path"`
	}) bool {
		return b.Path == "src/main.rs"
	}) {
		names = append(names, c.Package.Name)
	}
	for _, f := range append(s.glob(path.Join(dir, "src/bin/*.rs")), s.glob(path.Join(dir, "src/bin/*/main.rs"))...) {
		name := strings.TrimSuffix(path.Base(f), ".rs")
		if name == "main" {
			name = path.Base(path.Dir(f))
		}
		names = append(names, name)
	}
	return unique(names)
}

// rustBinary chooses the program, and the Cargo.toml that decided it.
func (s *source) rustBinary(p *Plan, root *cargoTOML) (name, where string, err error) {
	type program struct{ name, file string }
	var found []program
	add := func(file string, c *cargoTOML) {
		for _, n := range s.binaries(c, path.Dir(file)) {
			found = append(found, program{n, file})
		}
	}
	add("Cargo.toml", root)
	defaultRun := ""
	if root.Package != nil {
		defaultRun = root.Package.DefaultRun
	}
	if root.Workspace != nil {
		for _, pattern := range root.Workspace.Members {
			for _, file := range s.glob(path.Join(pattern, "Cargo.toml")) {
				c, err := s.readCargo(file)
				if err != nil {
					return "", "", err
				}
				add(file, c)
			}
		}
	}
	if want := s.cfg.Build.Package; want != "" {
		for _, f := range found {
			if f.name == want || path.Dir(f.file) == path.Clean(want) {
				p.because("%s says that the program is %s", s.cfg.File, f.name)
				return f.name, f.file, nil
			}
		}
		return "", "", errs.New(errs.InvalidArgument, "no program %s is in Cargo.toml or its workspace", want).
			WithHint("build.package in %s is the name of a program, or the folder of its package", s.cfg.File)
	}
	if len(found) == 0 {
		return "", "", errs.New(errs.InvalidArgument, "Cargo.toml is there, but no program").
			WithHint("looked for src/main.rs, src/bin/ and [[bin]]; is it a library?")
	}
	if len(found) == 1 {
		p.because("%s makes the program %s", found[0].file, found[0].name)
		return found[0].name, found[0].file, nil
	}
	var names []string
	for _, f := range found {
		names = append(names, f.name)
	}
	prefer := []string{defaultRun, s.cfg.Name, "web", "server", "app", "api"}
	if root.Package != nil {
		prefer = slices.Insert(prefer, 1, root.Package.Name)
	}
	for _, want := range prefer {
		for _, f := range found {
			if want != "" && f.name == want {
				p.because("the program is %s, chosen among %s (set build.package to choose another)", f.name, strings.Join(names, ", "))
				return f.name, f.file, nil
			}
		}
	}
	return "", "", errs.New(errs.InvalidArgument, "there are several programs and none is obviously the app: %s", strings.Join(names, ", ")).
		WithHint("say which in .runtime/app.toml:\n[build]\npackage = %q", names[0])
}

// rustVersion is what comes after the name of an image; empty when any version will do. A later Rust builds what an
// earlier one does, so a version is a bound from below.
func (s *source) rustVersion(p *Plan, root *cargoTOML) (string, error) {
	want, where := s.cfg.Build.Version, s.cfg.File
	for _, f := range []string{"rust-toolchain.toml", "rust-toolchain"} {
		if want != "" || !s.has(f) {
			continue
		}
		text, err := s.read(f)
		if err != nil {
			return "", err
		}
		if m := rustChannel.FindStringSubmatch(text); m != nil {
			want, where = m[1]+m[2], f
		}
	}
	if root.Package != nil && want == "" {
		if v, ok := root.Package.RustVersion.(string); ok {
			want, where = v, "rust-version in Cargo.toml"
		} else if root.Workspace != nil && root.Workspace.Package.RustVersion != "" {
			want, where = root.Workspace.Package.RustVersion, "rust-version in Cargo.toml"
		}
	}
	switch {
	case strings.HasPrefix(want, "nightly"), strings.HasPrefix(want, "beta"):
		return "", errs.New(errs.InvalidArgument, "%s asks for Rust %s, and the server has releases only", where, want).
			WithHint("build.version in app.toml asks for another, as a number; or add a Dockerfile")
	case want == "", want == "stable":
		p.because("the newest Rust that the server has packages of")
		p.fact(FactVersion, "Rust, the newest that the server has", "")
		return "", nil
	case !leadingMinor.MatchString(want):
		return "", errs.New(errs.InvalidArgument, "%s asks for Rust %q, which is not a version", where, want).WithHint("write one such as 1.85")
	}
	p.because("%s asks for Rust %s: that or a later one, as the server has it", where, want)
	p.fact(FactVersion, "Rust "+want, where)
	return ":" + leadingMinor.FindString(want) + "-", nil
}
