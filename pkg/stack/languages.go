package stack

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"miren.dev/runtime/pkg/errs"
)

// languages are those without a stack, by the files that their projects have.
var languages = []struct {
	name    string
	files   []string // at the root; patterns
	endings []string
	image   string // that a Dockerfile could begin from
}{
	{"Ruby", []string{"*.gemspec"}, []string{".rb"}, ""},
	{"Rust", nil, []string{".rs"}, ""},
	{"Java", nil, []string{".java"}, ""},
	{"PHP", nil, []string{".php"}, ""},
	{"Kotlin", nil, []string{".kt"}, "eclipse-temurin"},
	{"Scala", []string{"build.sbt"}, []string{".scala"}, "eclipse-temurin"},
	{"C# or F#", []string{"*.csproj", "*.fsproj", "*.sln", "*.slnx"}, []string{".cs", ".fs"}, "mcr.microsoft.com/dotnet/sdk"},
	{"Elixir", []string{"mix.exs"}, []string{".ex", ".exs"}, "elixir"},
	{"Erlang", []string{"rebar.config"}, []string{".erl"}, "erlang"},
	{"C or C++", []string{"CMakeLists.txt"}, []string{".c", ".cc", ".cpp"}, "gcc"},
	{"Haskell", []string{"stack.yaml", "*.cabal"}, []string{".hs"}, "haskell"},
	{"Swift", []string{"Package.swift"}, []string{".swift"}, "swift"},
	{"Dart", []string{"pubspec.yaml"}, []string{".dart"}, "dart"},
	{"Clojure", []string{"project.clj", "deps.edn"}, []string{".clj"}, "clojure"},
	{"Crystal", []string{"shard.yml"}, []string{".cr"}, "crystallang/crystal"},
	{"Zig", []string{"build.zig"}, []string{".zig"}, "debian"},
	{"Perl", []string{"cpanfile"}, []string{".pl", ".pm"}, "perl"},
	// These have a stack, which found nothing it knows.
	{"Go", nil, []string{".go"}, ""},
	{"Python", []string{"setup.py", "environment.yml"}, []string{".py"}, ""},
	{"JavaScript", nil, []string{".js", ".mjs", ".ts"}, ""},
}

// missing are the files that the stacks of these languages are found by.
var missing = map[string]string{
	"Ruby":       "add a Gemfile and a config.ru",
	"Rust":       "run `cargo init`, so that there is a Cargo.toml",
	"Java":       "add a pom.xml or a build.gradle",
	"PHP":        "name the start page index.php, or add a composer.json",
	"Go":         "run `go mod init`, so that there is a go.mod",
	"Python":     "name the dependencies in requirements.txt (an empty one will do) or pyproject.toml",
	"JavaScript": "run `npm init`, so that there is a package.json",
}

// registries are where the packages of these languages come from: a server that has only images cannot build them.
var registries = map[string]string{"C# or F#": "NuGet", "Elixir": "Hex", "Erlang": "Hex"}

// projects are files at the root of an app of a language without a stack, whatever is there besides for browsers.
var projects = []string{"mix.exs", "*.csproj", "*.fsproj"}

// otherProject is the file by which a folder is an app of a language without a stack; empty: it is none.
func (s *source) otherProject() string {
	for _, pattern := range projects {
		if found := s.glob(pattern); len(found) > 0 {
			return found[0]
		}
	}
	return ""
}

// maxLooked bounds how many files are looked at for their endings.
const maxLooked = 10000

// errEnough ends a walk.
var errEnough = errors.New("enough was seen")

// language guesses in what a source is written. It returns the index in languages, or -1, and what was seen.
func (s *source) language() (int, string) {
	for i, l := range languages {
		for _, pattern := range l.files {
			if found := s.glob(pattern); len(found) > 0 {
				return i, found[0]
			}
		}
	}
	counts := map[string]int{}
	looked := 0
	_ = fs.WalkDir(s, ".", func(name string, e fs.DirEntry, err error) error {
		b := path.Base(name)
		switch {
		case err != nil:
			return nil // what cannot be read is not counted
		case e.IsDir() && name != "." && (strings.HasPrefix(b, ".") || b == "node_modules" || b == "vendor"):
			return fs.SkipDir
		case e.Type().IsRegular():
			counts[path.Ext(b)]++
		}
		if looked++; looked > maxLooked {
			return errEnough
		}
		return nil
	})
	best, most, seen := -1, 0, ""
	for i, l := range languages {
		n := 0
		for _, ending := range l.endings {
			n += counts[ending]
		}
		if n > most {
			best, most, seen = i, n, fmt.Sprintf("%d files %s", n, l.endings[0])
			if n == 1 {
				seen = "a file " + l.endings[0]
			}
		}
	}
	return best, seen
}

// beside says how to build the assets for browsers beside an app of a language without a stack; empty: there are none.
func (s *source) beside() string {
	for _, d := range detectors {
		if slices.Contains(assets, d.name) && d.present(s) {
			return fmt.Sprintf("\nto build only the assets beside it: `r deploy --stack %s`", d.name)
		}
	}
	return ""
}

// notDetected is the error for a source that no detector recognises: what was looked for, and what was seen.
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
	found := fmt.Sprintf("looked for: %s\nfound only: %s\n", strings.Join(looked, "; "), strings.Join(there, ", "))
	i, seen := s.language()
	if i < 0 {
		return errs.New(errs.FailedPrecondition, "%w", ErrNoStack).WithHint("%sadd a Dockerfile, or run this in the folder of the app", found)
	}
	l := languages[i]
	if do := missing[l.name]; do != "" {
		return errs.New(errs.FailedPrecondition, "%w: it looks like %s (%s), without the file that says how it is built", ErrNoStack, l.name, seen).
			WithHint("%s%s; or add a Dockerfile", found, do)
	}
	reach := "a registry"
	if from := registries[l.name]; from != "" {
		reach += " of images, and " + from + " for its packages"
	}
	return errs.New(errs.FailedPrecondition, "%w: it looks like %s (%s), for which there is no stack", ErrNoStack, l.name, seen).
		WithHint("%sadd a Dockerfile; it could begin with FROM %s, where the server reaches %s%s", found, l.image, reach, s.beside())
}
