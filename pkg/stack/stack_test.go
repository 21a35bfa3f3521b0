package stack

import (
	"errors"
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

func TestDetectFindsStacks(t *testing.T) {
	tests := []struct {
		name, files string
		stack       string
		dockerfile  []string // texts in it; "!x": not in it
		reasons     []string // texts in the reasons
		service     string   // name:port:command of all services, separated by spaces (spaces in it as _)
	}{
		{"go", mod + main(""), "go", []string{"FROM runtime/go:1.25 AS build", "go build -trimpath -ldflags='-s -w' -o /out/shop .", "COPY go.mod ./"}, []string{"Go 1.25.1", "main package is ."}, "web:8080:"},
		{"go with sums", mod + "-- go.sum --\n" + main(""), "go", []string{"COPY go.mod go.sum ./\nRUN --mount=type=cache,target=/go/pkg/mod go mod download"}, nil, "web:8080:"},
		{"go in cmd", mod + main("cmd/thing/") + "-- lib.go --\npackage shop\n", "go", []string{"-o /out/thing ./cmd/thing"}, []string{"./cmd/thing"}, "web:8080:"},
		{"go, several mains", mod + main("cmd/web/") + main("cmd/tool/"), "go", []string{"./cmd/web"}, []string{"chosen before cmd/tool"}, "web:8080:"},
		{"go, root before cmd", mod + main("") + main("cmd/web/"), "go", []string{"-o /out/shop ."}, []string{"chosen before cmd/web"}, "web:8080:"},
		{"go, named like the module", mod + main("cmd/shop/") + main("cmd/migrate/"), "go", []string{"./cmd/shop"}, nil, "web:8080:"},
		{"go, one in cmd", mod + main("cmd/x/") + main("tools/gen/"), "go", []string{"./cmd/x"}, nil, "web:8080:"},
		{"go, said", mod + main("a/") + main("b/") + "-- app.toml --\n[build]\npackage = \"./b\"\n", "go", []string{"-o /out/b ./b"}, []string{"app.toml says that the main package is ./b"}, "web:8080:"},
		{"go, excluded files", mod + main("") + "-- gen/gen.go --\n//go:build ignore\n\npackage main\n-- x/x_windows.go --\npackage main\n-- y/y_test.go --\npackage main\n-- sub/go.mod --\nmodule sub\n" + main("sub/"), "go", []string{"-o /out/shop ."}, []string{"main package is ."}, "web:8080:"},
		{"go, cgo", mod + "-- main.go --\npackage main\n\nimport \"C\"\n", "go", []string{"FROM runtime/go-cgo:1.25", "CGO_ENABLED=1"}, []string{"needs cgo"}, "web:8080:"},
		{"go, vendored", mod + main("") + "-- vendor/modules.txt --\n", "go", []string{"!go mod download"}, []string{"vendor/"}, "web:8080:"},
		{"go, local replace", mod + "replace x => ./x\n" + main(""), "go", []string{"!go mod download"}, nil, "web:8080:"},
		{"go, old language", "-- go.mod --\nmodule m\ngo 1.13\n" + main(""), "go", []string{"FROM runtime/go:1.26"}, []string{"understands Go 1.13"}, "web:8080:"},

		{"node", "-- package.json --\n{\"scripts\":{\"start\":\"node server.js\"},\"dependencies\":{\"express\":\"5\"}}\n-- package-lock.json --\n{}\n", "node",
			[]string{"FROM runtime/node:22", "COPY package.json package-lock.json ./", "npm ci --omit=dev", `CMD ["/bin/sh","-c","exec node server.js"]`, "!AS build"}, []string{"npm ci", "start script: node server.js"}, "web:8080:"},
		{"node, build script", "-- package.json --\n{\"scripts\":{\"start\":\"node dist/x.js\",\"build\":\"tsc\"},\"engines\":{\"node\":\">=20 <21\"}}\n", "node",
			[]string{"FROM runtime/node:20", "RUN npm run build", "COPY --from=build"}, []string{"no lock file: x", "build script: tsc"}[1:], "web:8080:"},
		{"node, pnpm", "-- package.json --\n{\"main\":\"i.js\",\"packageManager\":\"pnpm@10.1.0\"}\n-- pnpm-lock.yaml --\n-- i.js --\n", "node", []string{"npm install -g pnpm@10.1.0", "pnpm install --frozen-lockfile --prod", "exec node i.js"}, nil, "web:8080:"},
		{"node, yarn", "-- package.json --\n{}\n-- yarn.lock --\n-- index.js --\n", "node", []string{"yarn install --frozen-lockfile --production", "exec node index.js"}, nil, "web:8080:"},
		{"node, prestart", "-- package.json --\n{\"scripts\":{\"prestart\":\"x\",\"start\":\"node s.js\"}}\n", "node", []string{"npm run start"}, nil, "web:8080:"},
		{"node, single-page app", "-- package.json --\n{\"scripts\":{\"build\":\"vite build\",\"start\":\"vite\"},\"devDependencies\":{\"vite\":\"6\"}}\n-- package-lock.json --\n", "node",
			[]string{"FROM runtime/static", "/app/dist/ /site/", "!npm ci --omit=dev"}, []string{"for development"}, "web:8080:"},
		{"node, version file", "-- package.json --\n{\"main\":\"i.js\"}\n-- i.js --\n-- .nvmrc --\nv20.11.1\n", "node", []string{"FROM runtime/node:20.11.1"}, []string{".nvmrc"}, "web:8080:"},
		{"node, Procfile", "-- package.json --\n{}\n-- Procfile --\nweb: node a.js\nworker: node b.js\n", "node", nil, []string{"Procfile"}, "web:8080:exec_node_a.js worker::exec_node_b.js"},

		{"python, flask", "-- requirements.txt --\nFlask==3.0\ngunicorn\n-- app.py --\nfrom flask import Flask\nserver = Flask(__name__)\n", "python",
			[]string{"pip install -r requirements.txt", "gunicorn --bind 0.0.0.0:$PORT --threads 8 app:server", "!pip install gunicorn"}, []string{"gunicorn"}, "web:8080:"},
		{"python, flask without server", "-- requirements.txt --\nflask\n-- main.py --\nimport flask\napp = flask.Flask(__name__)\n", "python", []string{"pip install gunicorn", "main:app"}, []string{"installed besides"}, "web:8080:"},
		{"python, factory", "-- requirements.txt --\nflask\n-- app.py --\ndef create_app():\n    return Flask(__name__)\n", "python", []string{"'app:create_app()'"}, nil, "web:8080:"},
		{"python, fastapi", "-- requirements.txt --\nfastapi[standard]\nuvicorn[standard]>=0.30\n-- app/main.py --\napp: FastAPI = FastAPI()\n", "python", []string{"uvicorn --host 0.0.0.0 --port $PORT app.main:app"}, []string{"uvicorn"}, "web:8080:"},
		{"python, django", "-- requirements.txt --\nDjango\n-- manage.py --\nimport django\n-- site1/wsgi.py --\n", "python", []string{"gunicorn", "site1.wsgi"}, []string{"Django"}, "web:8080:"},
		{"python, included requirements", "-- requirements.txt --\n-r base.txt\n-- base.txt --\nflask\n-- app.py --\napp = Flask(__name__)\n", "python", []string{"COPY requirements.txt base.txt ./"}, nil, "web:8080:"},
		{"python, editable", "-- requirements.txt --\n-e .\n-- app.py --\n", "python", []string{"COPY . .\nRUN --mount=type=cache,target=/root/.cache/pip pip install"}, nil, "web:8080:"},
		{"python, pyproject", "-- pyproject.toml --\n[project]\ndependencies = [\"flask>=3\", \"x[y]~=1\"]\n[build-system]\n-- app.py --\napp = Flask(__name__)\n", "python", []string{"pip install 'flask>=3' 'x[y]~=1'", "pip install --no-deps ."}, nil, "web:8080:"},
		{"python, uv", "-- pyproject.toml --\n[project]\ndependencies = [\"flask\"]\n-- uv.lock --\n-- app.py --\n", "python", []string{"uv sync --frozen"}, []string{"uv"}, "web:8080:"},
		{"python, poetry", "-- pyproject.toml --\n[tool.poetry.dependencies]\npython = \"3\"\nflask = \"3\"\n-- poetry.lock --\n-- app.py --\n", "python", []string{"poetry install --only main"}, nil, "web:8080:"},
		{"python, pipenv", "-- Pipfile --\n[packages]\nflask = \"*\"\n-- Pipfile.lock --\n-- app.py --\n", "python", []string{"pipenv requirements"}, nil, "web:8080:"},
		{"python, plain", "-- requirements.txt --\nrequests\n-- main.py --\n", "python", []string{"exec python3 main.py"}, []string{"run by python"}, "web:8080:"},
		{"python, Procfile without web", "-- requirements.txt --\n-- Procfile --\nworker: python3 w.py\n", "python", nil, nil, "worker::exec_python3_w.py"},
		{"python, packages", "-- requirements.txt --\n-- main.py --\n-- app.toml --\n[build]\npackages = [\"libpq5\", \"gcc\"]\n", "python", []string{"apt-get install -y --no-install-recommends libpq5 gcc"}, nil, "web:8080:"},

		{"static", "-- index.html --\n", "static", []string{"FROM runtime/static", " ./ /site/"}, []string{"index.html"}, "web:8080:"},
		{"static in a folder", "-- public/index.html --\n", "static", []string{" public/ /site/"}, nil, "web:8080:"},
		{"static, said", "-- www/x.html --\n-- app.toml --\n[build]\nstack = \"static\"\noutput = \"www\"\n[services.web]\nport = 80\n", "static", []string{" www/ /site/"}, nil, "web:80:"},

		{"Dockerfile", "-- Dockerfile --\nFROM debian\nEXPOSE 9000\nCMD [\"x\"]\n-- go.mod --\n", "dockerfile", []string{"FROM debian"}, []string{"exposes port 9000"}, "web:9000:"},
		{"Dockerfile elsewhere", "-- deploy/Dockerfile --\nFROM scratch\n-- app.toml --\n[build]\ndockerfile = \"./deploy/Dockerfile\"\n", "dockerfile", nil, []string{"deploy/Dockerfile"}, "web:8080:"},
		{"Dockerfile overruled", "-- Dockerfile --\nFROM debian\n-- index.html --\n-- app.toml --\n[build]\nstack = \"static\"\n", "static", nil, []string{"app.toml says that the stack is static"}, "web:8080:"},
		{"Dockerfile, inherited port", "-- Dockerfile --\nARG PORT=81\nFROM debian AS base\nEXPOSE 80/udp ${PORT}/tcp\nFROM base\nCMD x\n", "dockerfile", nil, []string{"81"}, "web:81:"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p, err := detect(t, tt.files)
			if err != nil {
				t.Fatal(err, errs.HintOf(err))
			}
			if p.Stack != tt.stack {
				t.Errorf("stack %s", p.Stack)
			}
			for _, want := range tt.dockerfile {
				want, not := strings.CutPrefix(want, "!")
				if strings.Contains(p.Dockerfile, want) == not {
					t.Errorf("%q (absent: %v) in:\n%s", want, not, p.Dockerfile)
				}
			}
			all := strings.Join(p.Reasons, "\n")
			for _, want := range tt.reasons {
				if !strings.Contains(all, want) {
					t.Errorf("%q is not in the reasons:\n%s", want, all)
				}
			}
			var services []string
			for _, s := range p.Services {
				port, command := "", ""
				if s.Port != nil {
					port = itoa(*s.Port)
				}
				if len(s.Command) > 0 {
					command = strings.ReplaceAll(s.Command[len(s.Command)-1], " ", "_")
				}
				services = append(services, s.Name+":"+port+":"+command)
			}
			if got := strings.Join(services, " "); got != tt.service {
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

func itoa(n int64) string {
	if n == 0 {
		return "0"
	}
	s := ""
	for ; n > 0; n /= 10 {
		s = string(rune('0'+n%10)) + s
	}
	return s
}

func TestNothingFits(t *testing.T) {
	for name, tt := range map[string]struct {
		files, message, hint string
		none                 bool
	}{
		"nothing known":           {"-- README --\n-- src/x.rs --\n", "no way to build", "found only: README, src/", true},
		"empty":                   {"", "the folder is empty", "ignored", true},
		"no main":                 {mod + "-- a.go --\npackage a\n", "no main package", "package main", false},
		"too many mains":          {mod + main("a/") + main("b/"), "none is obviously the app: a, b", "package = \"./a\"", false},
		"no go line":              {"-- go.mod --\nmodule m\n" + main(""), "no go line", "go mod tidy", false},
		"node without start":      {"-- package.json --\n{}\n", "neither a start script", "Procfile", false},
		"broken package.json":     {"-- package.json --\n{,}\n", "package.json:", "", false},
		"node too new":            {"-- package.json --\n{\"main\":\"a.js\",\"engines\":{\"node\":\">=99\"}}\n-- a.js --\n", "which no known version fits", "", false},
		"unknown output":          {"-- package.json --\n{\"scripts\":{\"build\":\"make\"}}\n", "not known where", "output", false},
		"python without app":      {"-- requirements.txt --\nflask\n", "how it starts is not known", "Procfile", false},
		"no Dockerfile":           {"-- app.toml --\n[build]\ndockerfile = \"x\"\n", "there is no x", "", false},
		"broken Dockerfile":       {"-- Dockerfile --\nNOPE\n", "Dockerfile:", "", false},
		"service without command": {"-- index.html --\n-- app.toml --\n[services.worker]\n", "service worker has no command", "services.worker", false},
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

func TestDockerfileBases(t *testing.T) {
	for name, tt := range map[string]struct{ text, target, want string }{
		"stages":         {"FROM golang:1.26 AS build\nFROM build AS more\nFROM debian:12\nCOPY --from=build /a /\n", "", "golang:1.26 debian:12"},
		"arguments":      {"ARG V=1.25\nARG I=golang:${V}\nFROM ${I}\n", "", "golang:1.25"},
		"platform":       {"FROM --platform=$BUILDPLATFORM node:22\n", "", "node:22"},
		"copy and mount": {"FROM scratch\nCOPY --from=busybox /x /\nRUN --mount=type=bind,from=python:3,target=/p true\n", "", "busybox python:3"},
		"number":         {"FROM debian\nFROM scratch\nCOPY --from=0 /x /\n", "", "debian"},
		"target":         {"FROM debian AS a\nFROM node AS b\n", "a", "debian"},
		"once":           {"FROM debian AS a\nFROM debian AS b\n", "", "debian"},
		"like a stage":   {"FROM debian AS debian\nFROM debian\n", "", "debian"},
		"later stage":    {"FROM node AS a\nFROM scratch AS node\n", "", "node"},
	} {
		d, err := parseDockerfile(tt.text, nil, tt.target)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got := strings.Join(d.bases, " "); got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}

func TestNodeRanges(t *testing.T) {
	for want, major := range map[string]int{">=18": 22, "20": 20, "20.x": 20, "^20.1.0": 20, "~18.2": 18, ">=18 <21": 20, "18 || 20": 20, "<=20": 20, "<22": 20, ">22": 24, "*": 22, "16 - 20": 20, "v24.1.0": 24} {
		for _, m := range []int{22, 24, 26, 20, 18, 16, 14} {
			if inRange(want, m) {
				if m != major {
					t.Errorf("%q: %d, want %d", want, m, major)
				}
				break
			}
		}
	}
}

func FuzzDockerfile(f *testing.F) {
	f.Add("ARG A=x\nFROM $A AS b\nCOPY --from=c / /\nEXPOSE 1-2\n")
	f.Fuzz(func(t *testing.T, text string) { _, _ = parseDockerfile(text, nil, "") })
}
