package stack

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"

	"miren.dev/runtime/pkg/appconfig"
	"miren.dev/runtime/pkg/errs"
)

// folder makes a source from a text of "-- name --" lines, each followed by the file.
func folder(text string) fstest.MapFS {
	fsys := fstest.MapFS{}
	name := ""
	for line := range strings.Lines(text) {
		if n, ok := strings.CutPrefix(line, "-- "); ok {
			name = strings.TrimSuffix(strings.TrimSpace(n), " --")
			fsys[name] = &fstest.MapFile{}
			continue
		}
		fsys[name].Data = append(fsys[name].Data, line...)
	}
	return fsys
}

func detect(t *testing.T, text string) (*Plan, error) {
	t.Helper()
	fsys := folder(text)
	cfg, err := appconfig.Load(fsys)
	if err != nil {
		t.Fatal(err)
	}
	return Detect(fsys, cfg)
}

const mod = "-- go.mod --\nmodule example.com/shop\n\ngo 1.25.1\n"

func main(dir string) string { return "-- " + dir + "main.go --\npackage main\n" }

// planTest is a source and what its plan must be.
type planTest struct {
	name, files string
	dockerfile  []string // texts in it; "!x": not in it
	reasons     []string // texts in reasons and warnings; "!x": not in them
	service     string   // name:port:command of all services, separated by spaces (spaces in it as _); empty: not looked at
}

func checkPlans(t *testing.T, stack string, tests []planTest) {
	t.Helper()
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p, err := detect(t, tt.files)
			if err != nil {
				t.Fatal(err, errs.HintOf(err))
			}
			if p.Stack != stack {
				t.Errorf("stack %s", p.Stack)
			}
			contains := func(what, text string, wanted []string) {
				for _, want := range wanted {
					want, not := strings.CutPrefix(want, "!")
					if strings.Contains(text, want) == not {
						t.Errorf("%q (absent: %v) in the %s:\n%s", want, not, what, text)
					}
				}
			}
			contains("Dockerfile", p.Dockerfile, tt.dockerfile)
			contains("reasons", strings.Join(append(p.Reasons, p.Warnings...), "\n"), tt.reasons)
			var services []string
			for _, s := range p.Services {
				port, command := "", ""
				if s.Port != nil {
					port = strconv.FormatInt(*s.Port, 10)
				}
				if len(s.Command) > 0 {
					command = strings.ReplaceAll(s.Command[len(s.Command)-1], " ", "_")
				}
				services = append(services, s.Name+":"+port+":"+command)
			}
			if got := strings.Join(services, " "); tt.service != "" && got != tt.service {
				t.Errorf("services %q, want %q", got, tt.service)
			}
			// What is generated is understood, and needs no images but those that the plan names.
			d, err := parseDockerfile(p.Dockerfile, nil, "")
			if err != nil {
				t.Fatalf("%v in:\n%s", err, p.Dockerfile)
			}
			if got, want := strings.Join(d.bases, " "), strings.Join(p.Bases, " "); got != want {
				t.Errorf("needs %q, says %q", got, want)
			}
		})
	}
}

func TestDockerfileTellsOtherStacks(t *testing.T) {
	p, err := detect(t, "-- Dockerfile --\nFROM nginx\n"+mod+main("")+"-- package.json --\n{}\n-- index.html --\n")
	if err != nil || strings.Join(p.Others, " ") != "go static" { // of package.json nothing starts
		t.Errorf("others %v, %v", p.Others, err)
	}
	if hint := Offer(p.Others); !strings.Contains(hint, "go or static") || !strings.Contains(hint, "r deploy --stack go") {
		t.Errorf("offer %q", hint)
	}
	for _, text := range []string{"-- Dockerfile --\nFROM nginx\n", "-- Dockerfile --\nFROM nginx\n-- index.html --\n-- app.toml --\n[build]\ndockerfile = \"Dockerfile\"\n", mod + main("") + "-- index.html --\n"} {
		if p, err := detect(t, text); err != nil || len(p.Others) > 0 {
			t.Errorf("%s: %v, %v", text, p, err)
		}
	}
	// One that cannot even be read is an error, which offers them too.
	if _, err := detect(t, "-- Dockerfile --\nNOPE\n"+mod+main("")); !strings.Contains(errs.HintOf(err), "r deploy --stack go") || !errs.Is(err, errs.InvalidArgument) {
		t.Errorf("%v, hint %q", err, errs.HintOf(err))
	}
}

func TestChosenStackLeavesOutTheDockerfile(t *testing.T) {
	files := folder("-- Dockerfile --\nFROM nginx AS prod\n-- index.html --\n-- app.toml --\n[build]\ntarget = \"prod\"\n")
	cfg, err := appconfig.Load(files)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"": "dockerfile", "dockerfile": "dockerfile", "static": "static"} {
		chosen, err := Choose(cfg, name)
		if err != nil {
			t.Fatal(name, err)
		}
		p, err := Detect(files, chosen)
		if err != nil || p.Stack != want {
			t.Errorf("%q: %+v, %v", name, p, err)
		}
		// What is offered can be chosen.
		if name == "" && !slices.Equal(p.Others, []string{"static"}) {
			t.Errorf("others %v", p.Others)
		}
	}
	if _, err := Choose(cfg, "elixir"); !errs.Is(err, errs.InvalidArgument) || !strings.Contains(errs.HintOf(err), "dockerfile, go, python, ruby, php, java, rust, deno, node, static") {
		t.Errorf("%v, hint %q", err, errs.HintOf(err))
	}
}

func TestNothingFits(t *testing.T) {
	for name, tt := range map[string]struct {
		files, message, hint string
		none                 bool
	}{
		"nothing known":            {"-- README --\n-- src/x.unknown --\n", "no way to build", "found only: README, src/", true},
		"another language":         {"-- README --\n-- src/x.ex --\n", "it looks like Elixir (a file .ex), for which there is no stack", "FROM elixir", true},
		"language by its file":     {"-- mix.exs --\n-- x.js --\n", "it looks like Elixir (mix.exs)", "add a Dockerfile", true},
		"Elixir with assets":       {"-- mix.exs --\n-- package.json --\n{\"scripts\":{\"build\":\"vite build\"}}\n", "it looks like Elixir (mix.exs)", "Hex for its packages\nto build only the assets beside it: `r deploy --stack node`", true},
		"Elixir, its guide":        {"-- mix.exs --\n-- index.html --\n", "it looks like Elixir (mix.exs), for which there is no stack", "add a Dockerfile; it could begin with FROM elixir", true},
		".NET with a site":         {"-- Shop.csproj --\n-- package.json --\n{\"main\":\"x.js\"}\n-- x.js --\n", "it looks like C# or F# (Shop.csproj)", "mcr.microsoft.com/dotnet/sdk, where the server reaches a registry of images, and NuGet", true},
		"F#":                       {"-- Shop.fsproj --\n", "it looks like C# or F# (Shop.fsproj)", "dotnet/sdk", true},
		"most files decide":        {"-- a.php --\n-- b.php --\n-- c.py --\n", "it looks like PHP (2 files .php)", "", true},
		"Rust without Cargo.toml":  {"-- src/x.rs --\n", "it looks like Rust (a file .rs), without the file", "cargo init", true},
		"Ruby without a start":     {"-- Gemfile --\ngem \"rake\"\n", "how it starts is not known", "config.ru", false},
		"Ruby that is unknown":     {"-- config.ru --\n-- .ruby-version --\n1.8.7\n", "no known version fits", "2.7 to 4.0", false},
		"PHP that is unknown":      {"-- index.php --\n-- composer.json --\n{\"require\":{\"php\":\"^5.3\"}}\n", "no known version fits", "7.4 to 8.5", false},
		"broken composer.json":     {"-- composer.json --\n{,}\n", "composer.json:", "composer validate", false},
		"Maven without main class": {"-- pom.xml --\n<project/>\n", "has no main class", "spring-boot-maven-plugin", false},
		"Maven with modules":       {"-- pom.xml --\n<modules><module>a</module></modules>\n", "several modules", "package", false},
		"no such module of Maven":  {"-- pom.xml --\n-- app.toml --\n[build]\npackage = \"a\"\n", "a is no module", "folder of the app's module", false},
		"Gradle of a library":      {"-- build.gradle --\nplugins { id 'java-library' }\n", "makes no program", "application", false},
		"Java that is no version":  {"-- build.gradle --\nid 'application'\n-- app.toml --\n[build]\nversion = \"lts\"\n", "which is not a version", "21", false},
		"library of Rust":          {"-- Cargo.toml --\n[package]\nname = \"x\"\n-- src/lib.rs --\n", "but no program", "src/main.rs", false},
		"several programs of Rust": {"-- Cargo.toml --\n[package]\nname = \"x\"\n-- src/bin/a.rs --\n-- src/bin/b.rs --\n", "none is obviously the app: a, b", "package = \"a\"", false},
		"no such program of Rust":  {"-- Cargo.toml --\n[package]\nname = \"x\"\n-- src/main.rs --\n-- app.toml --\n[build]\npackage = \"y\"\n", "no program y", "name of a program", false},
		"nightly Rust":             {"-- Cargo.toml --\n[package]\nname = \"x\"\n-- src/main.rs --\n-- rust-toolchain.toml --\n[toolchain]\nchannel = \"nightly\"\n", "releases only", "build.version", false},
		"Deno without a start":     {"-- deno.json --\n{}\n", "how it starts is not known", "task start", false},
		"broken deno.json":         {"-- deno.jsonc --\n{\n", "deno.jsonc:", "", false},
		"Go without go.mod":        {"-- main.go --\npackage main\n", "it looks like Go (a file .go), without the file", "go mod init", true},
		"Python without a list":    {"-- app.py --\n", "it looks like Python", "requirements.txt", true},
		"unused key":               {mod + main("") + "-- app.toml --\n[build]\ncommand = \"x\"\n", "app.toml: build.command means nothing to the stack go", "it is for node, python", false},
		"unused key, Dockerfile":   {"-- Dockerfile --\nFROM debian\n-- app.toml --\n[build]\nversion = \"1\"\n", "build.version means nothing to the stack dockerfile", "", false},
		"Python 2":                 {"-- requirements.txt --\n-- main.py --\n-- .python-version --\n2.7.18\n", ".python-version asks for Python \"2.7.18\"", "3.13", false},
		"Python environment":       {"-- requirements.txt --\n-- main.py --\n-- .python-version --\nmyenv\n", "which is not a version", "", false},
		"Python that is unknown":   {"-- pyproject.toml --\n[project]\nrequires-python = \">=3.99\"\n-- main.py --\n", "which no known version fits", "3.8 to 3.14", false},
		"factory with parameters":  {"-- requirements.txt --\nflask\n-- x/__init__.py --\ndef create_app(config):\n    return Flask(__name__)\n", "how it starts is not known", "create_app", false},
		"several scripts":          {"-- pyproject.toml --\n[project.scripts]\na = \"x:a\"\nb = \"x:b\"\n", "several scripts", "web: a", false},
		"Node that is no version":  {"-- package.json --\n{\"main\":\"a.js\"}\n-- a.js --\n-- .nvmrc --\nfoo\n", "which is not a version", "", false},
		"adapter that builds none": {"-- package.json --\n{\"scripts\":{\"build\":\"vite build\"},\"devDependencies\":{\"@sveltejs/kit\":\"2\",\"@sveltejs/adapter-auto\":\"3\",\"vite\":\"6\"}}\n", "adapter-auto", "npm install -D @sveltejs/adapter-node", false},
		"several workspaces":       {"-- package.json --\n{\"workspaces\":[\"*\"]}\n-- a/package.json --\n{\"scripts\":{\"start\":\"x\"}}\n-- b/package.json --\n{\"scripts\":{\"start\":\"x\"}}\n", "none is obviously the app: a, b", "package = \"a\"", false},
		"no such workspace":        {"-- package.json --\n{\"workspaces\":[\"a\"]}\n-- a/package.json --\n{}\n-- app.toml --\n[build]\npackage = \"b\"\n", "there is no b/package.json", "there are: a", false},
		"workspace without module": {"-- go.work --\ngo 1.25\nuse ../x\n", "go.work uses ../x", "all modules", false},
		"empty output":             {"-- app.toml --\n[build]\nstack = \"static\"\noutput = \"www\"\n", "there is no folder www", "empty", false},
		"empty":                    {"", "the folder is empty", "ignored", true},
		"no main":                  {mod + "-- a.go --\npackage a\n", "no main package", "package main", false},
		"too many mains":           {mod + main("a/") + main("b/"), "none is obviously the app: a, b", "package = \"./a\"", false},
		"no go line":               {"-- go.mod --\nmodule m\n" + main(""), "no go line", "go mod tidy", false},
		"node without start":       {"-- package.json --\n{}\n", "neither a start script", "Procfile", false},
		"broken package.json":      {"-- package.json --\n{\n  \"name\": \"x\",\n  main\n}\n", "package.json:3: invalid character 'm'", "", false},
		"odd package.json":         {"-- package.json --\n{\n  \"main\": 7\n}\n", "package.json:2: json: cannot unmarshal number", "", false},
		"node too new":             {"-- package.json --\n{\"main\":\"a.js\",\"engines\":{\"node\":\">=99\"}}\n-- a.js --\n", "which no known version fits", "", false},
		"unknown output":           {"-- package.json --\n{\"scripts\":{\"build\":\"make\"}}\n", "not known where", "output", false},
		"python without app":       {"-- requirements.txt --\nflask\n", "how it starts is not known", "Procfile", false},
		"no Dockerfile":            {"-- app.toml --\n[build]\ndockerfile = \"x\"\n", "there is no x", "", false},
		"broken Dockerfile":        {"-- Dockerfile --\nNOPE\n", "Dockerfile:", "", false},
		"service without command":  {"-- index.html --\n-- app.toml --\n[services.worker]\n", "service worker has no command", "services.worker", false},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := detect(t, tt.files)
			class := errs.InvalidArgument
			if tt.none {
				class = errs.FailedPrecondition
			}
			if !errs.Is(err, class) || errors.Is(err, ErrNoStack) != tt.none || !strings.Contains(err.Error(), tt.message) || !strings.Contains(errs.HintOf(err), tt.hint) {
				t.Errorf("got %v\nhint %q", err, errs.HintOf(err))
			}
		})
	}
}
