package stack

import "testing"

func TestGoPlans(t *testing.T) {
	checkPlans(t, "go", []planTest{
		{"go", mod + main(""), []string{"FROM runtime/go:1.25 AS build", "go build -trimpath -ldflags='-s -w' -o /out/shop .", "COPY go.mod ./"}, []string{"Go 1.25.1", "main package is ."}, "web:8080:"},
		{"go with sums", mod + "-- go.sum --\n" + main(""), []string{"COPY go.mod go.sum ./\nRUN --mount=type=cache,target=/go/pkg/mod go mod download"}, nil, "web:8080:"},
		{"go in cmd", mod + main("cmd/thing/") + "-- lib.go --\npackage shop\n", []string{"-o /out/thing ./cmd/thing"}, []string{"./cmd/thing"}, "web:8080:"},
		{"go, several mains", mod + main("cmd/web/") + main("cmd/tool/"), []string{"./cmd/web"}, []string{"chosen before cmd/tool"}, "web:8080:"},
		{"go, root before cmd", mod + main("") + main("cmd/web/"), []string{"-o /out/shop ."}, []string{"chosen before cmd/web"}, "web:8080:"},
		{"go, named like the module", mod + main("cmd/shop/") + main("cmd/migrate/"), []string{"./cmd/shop"}, nil, "web:8080:"},
		{"go, a later major version", "-- go.mod --\nmodule example.com/nats-server/v2\ngo 1.25\n" + main(""), []string{"-o /out/nats-server ."}, nil, "web:8080:"},
		{"go, one in cmd", mod + main("cmd/x/") + main("tools/gen/"), []string{"./cmd/x"}, nil, "web:8080:"},
		{"go, said", mod + main("a/") + main("b/") + "-- app.toml --\n[build]\npackage = \"./b\"\n", []string{"-o /out/b ./b"}, []string{"app.toml says that the main package is ./b"}, "web:8080:"},
		{"go, excluded files", mod + main("") + "-- gen/gen.go --\n//go:build ignore\n\npackage main\n-- x/x_windows.go --\npackage main\n-- y/y_test.go --\npackage main\n-- sub/go.mod --\nmodule sub\n" + main("sub/"), []string{"-o /out/shop ."}, []string{"main package is ."}, "web:8080:"},
		{"go, cgo", mod + "-- main.go --\npackage main\n\nimport \"C\"\n", []string{"FROM runtime/go-cgo:1.25", "CGO_ENABLED=1"}, []string{"needs cgo"}, "web:8080:"},
		{"go, vendored", mod + main("") + "-- vendor/modules.txt --\n", []string{"!go mod download"}, []string{"vendor/"}, "web:8080:"},
		{"go, local replace", mod + "replace x => ./x\n" + main(""), []string{"!go mod download"}, nil, "web:8080:"},
		{"go, old language", "-- go.mod --\nmodule m\ngo 1.13\n" + main(""), []string{"FROM runtime/go:1.26"}, []string{"understands Go 1.13"}, "web:8080:"},
		{"go, version that was said", mod + main("") + "-- app.toml --\n[build]\nversion = \"1.25\"\n", []string{"runtime/go:1.25 "}, []string{"app.toml asks for Go 1.25"}, ""},
		{"go, packages for cgo", mod + "-- main.go --\npackage main\n\nimport \"C\"\n-- app.toml --\n[build]\npackages = [\"libvips-dev\"]\n", []string{"WORKDIR /src\nRUN apt-get update && apt-get install -y --no-install-recommends libvips-dev "}, nil, ""},
		{"go, workspace", "-- go.work --\ngo 1.25.2\n\nuse (\n\t./api // the app\n\t./lib\n)\n-- api/go.mod --\nmodule example.com/api\ngo 1.25\n-- api/go.sum --\n" + main("api/cmd/web/") + "-- lib/go.mod --\nmodule example.com/lib\n-- lib/l.go --\npackage lib\n",
			[]string{"runtime/go:1.25 ", "COPY go.work ./\nCOPY api/go.mod api/go.sum ./api/\nCOPY lib/go.mod ./lib/\nRUN --mount=type=cache,target=/go/pkg/mod go mod download", "go build -trimpath -ldflags='-s -w' -o /out/web ./api/cmd/web", "WORKDIR /app/api\n"},
			[]string{"go.work asks for Go 1.25.2", "workspace of the modules api, lib", "main package is ./api/cmd/web"}, "web:8080:"},
		{"go, workspace with a module of its own", "-- go.work --\ngo 1.25\nuse .\nuse ./lib\n" + mod + main("") + "-- lib/go.mod --\nmodule x\n", []string{"-o /out/app .\n", "COPY go.work ./\nCOPY go.mod ./\nCOPY lib/go.mod ./lib/\n"}, nil, ""},
	})
}
