package buildkit

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/stack"
)

// folder writes a source from a text of "-- name --" lines, each followed by the file; "-- name -> target --" is a
// link, "-- name/ --" an empty folder.
func folder(t *testing.T, text string) string {
	t.Helper()
	dir := t.TempDir()
	var file *os.File
	for line := range strings.Lines(text) {
		name, ok := strings.CutPrefix(line, "-- ")
		if !ok {
			if _, err := file.WriteString(line); err != nil {
				t.Fatal(err)
			}
			continue
		}
		name = strings.TrimSuffix(strings.TrimSpace(name), " --")
		name, target, link := strings.Cut(name, " -> ")
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		switch {
		case link:
			err = os.Symlink(target, path)
		case strings.HasSuffix(name, "/"):
			err = os.Mkdir(path, 0o755)
		default:
			file, err = os.Create(path)
			if err == nil {
				t.Cleanup(func() { _ = file.Close() })
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

const goMod = "-- go.mod --\nmodule example.com/shop\n\ngo 1.26\n"

const goMain = `-- main.go --
package main

import (
	"net/http"
	"os"
)

func main() {
	http.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { w.Write([]byte("shop answers")) })
	http.ListenAndServe(":"+os.Getenv("PORT"), nil)
}
`

// sourceTest is a source below testdata/sources: what it shows, and what must hold of its image.
type sourceTest struct {
	name, path, serves, files string
	dir                       string   // of its files; empty: they are made from files
	has, lacks, owns          []string // files of the image; owns: those of the app's user
}

// readSources reads the sources in a folder of testdata.
func readSources(t *testing.T, folder string) []sourceTest {
	t.Helper()
	found, err := filepath.Glob("testdata/" + folder + "/*.txt")
	if err != nil || len(found) == 0 {
		t.Fatal(found, err)
	}
	var tests []sourceTest
	for _, f := range found {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		head, files, _ := strings.Cut(string(b), "\n-- ")
		tt := sourceTest{name: strings.TrimSuffix(filepath.Base(f), ".txt"), path: "/", files: "-- " + files}
		for line := range strings.Lines(head) {
			switch key, value, _ := strings.Cut(strings.TrimSpace(line), ": "); key {
			case "serves":
				tt.serves = value
			case "path":
				tt.path = value
			case "has":
				tt.has = append(tt.has, value)
			case "lacks":
				tt.lacks = append(tt.lacks, value)
			case "owns":
				tt.owns = append(tt.owns, value)
			}
		}
		tests = append(tests, tt)
	}
	return tests
}

// testSources builds sources that were seen to fail, and runs what comes out.
func testSources(t *testing.T, e *env) {
	for _, tt := range readSources(t, "sources") {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel() // they mostly wait for registries
			testSource(t, e, tt)
		})
	}
}

// testSource builds a source and runs what comes out, in a root that is mounted until the test ends.
func testSource(t *testing.T, e *env, tt sourceTest) (string, *Result, *stack.Plan) {
	t.Helper()
	if tt.dir == "" {
		tt.dir = folder(t, tt.files)
	}
	req, plan := e.request(t, tt.dir, tt.name)
	res, _, err := e.build(t, req)
	if err != nil {
		t.Fatalf("%v\nhint %q\n%s\n%s", err, errs.HintOf(err), failureLog(err), plan.Dockerfile)
	}
	root := e.rootfs(t, res)
	for _, f := range tt.has {
		if _, err := os.Lstat(filepath.Join(root, f)); err != nil {
			t.Errorf("the image has no %s", f)
		}
	}
	for _, f := range tt.lacks {
		if _, err := os.Lstat(filepath.Join(root, f)); err == nil {
			t.Errorf("the image has %s", f)
		}
	}
	for _, f := range append(tt.owns, "home/runtime") {
		if info, err := os.Lstat(filepath.Join(root, f)); err != nil || info.Sys().(*syscall.Stat_t).Uid != 10001 {
			t.Errorf("%s is not the app's own: %v", f, err)
		}
	}
	e.servesAt(t, root, res, plan, tt.path, tt.serves)
	return root, res, plan
}

// testLinks builds sources with dangling links and empty folders.
func testLinks(t *testing.T, e *env) {
	for name, tt := range map[string]struct{ files, want string }{
		"static, dangling link":    {"-- index.html --\nhome\n-- gone -> nowhere --\n-- a/x.txt --\n-- a/gone -> ../nowhere --\n", "home"},
		"static, link to a folder": {"-- index.html --\nhome\n-- a/x.txt --\n-- b -> a --\n", "home"},
		"static, empty folder":     {"-- index.html --\nhome\n-- empty/ --\n", "home"},
		"static, in a folder":      {"-- public/index.html --\nhome\n-- public/gone -> nowhere --\n-- public/empty/ --\n", "home"},
		"go, dangling link":        {goMod + goMain + "-- gone -> nowhere --\n-- assets/gone -> nowhere --\n", "shop"},
		"go, dangling link to Go":  {goMod + goMain + "-- gone.go.txt -> nowhere.go --\n-- x/gone.go -> nowhere.go --\n", "shop"},
		"go, empty folder":         {goMod + goMain + "-- empty/ --\n", "shop"},
		"go, folder of Go only":    {goMod + goMain + "-- lib/lib.go --\npackage lib\n", "shop"},
		"go, link to a folder":     {goMod + goMain + "-- lib/lib.go --\npackage lib\n-- alias -> lib --\n", "shop"},
	} {
		t.Run(name, func(t *testing.T) {
			req, plan := e.request(t, folder(t, tt.files), "links")
			res, _, err := e.build(t, req)
			if err != nil {
				t.Fatal(err, errs.HintOf(err), failureLog(err))
			}
			e.serves(t, res, plan, tt.want)
		})
	}
}

// testParallelInstalls runs Yarn's installs at the same time: its cache does not survive two in one mount.
func testParallelInstalls(t *testing.T, e *env) {
	packages := []string{"lodash", "express", "react-dom", "chalk", "axios"}
	const apps = 3
	requests := make([]Request, apps)
	for i := range requests {
		// Different apps, so that no step is taken from another's build.
		files := fmt.Sprintf("-- yarn.lock --\n# yarn lockfile v1\n-- i.js --\n-- package.json --\n{\"name\": \"app%d\", \"main\": \"i.js\", \"dependencies\": {", i)
		for k, name := range packages {
			if k > 0 {
				files += ", "
			}
			files += fmt.Sprintf("%q: \"*\"", name)
		}
		dir := folder(t, files+"}}\n")
		// The lock file says nothing yet: it is written by the install.
		requests[i], _ = e.request(t, dir, fmt.Sprintf("app%d", i))
		requests[i].Dockerfile = strings.ReplaceAll(requests[i].Dockerfile, " --frozen-lockfile", "")
	}
	results := make(chan error, apps)
	for _, req := range requests {
		go func() {
			_, err := e.buildkit.Build(t.Context(), req, nil)
			results <- err
		}()
	}
	for range requests {
		if err := <-results; err != nil {
			t.Error(err, failureLog(err))
		}
	}
}
