package main

import (
	"encoding/json"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"miren.dev/runtime/pkg/schema/gogen"
)

var update = flag.Bool("update", false, "rewrite the golden files under testdata")

// TestGeneratedFilesMatchGolden: the files that testdata/demo/api/*/rpc.yml generates are the
// ones that are checked in beside them.
func TestGeneratedFilesMatchGolden(t *testing.T) {
	root := filepath.Join("testdata", "demo")
	if *update {
		if err := gogen.Run(root, false, generate); err != nil {
			t.Fatal(err)
		}
	}
	if err := gogen.Run(root, true, generate); err != nil {
		t.Errorf("%v; look at the difference after go test -update", err)
	}
}

// TestGeneratedCode compiles the golden files as packages of this module (an
// overlay puts them there) and runs testdata/demo/behaviour_test.go.txt
// against them.
func TestGeneratedCode(t *testing.T) {
	root, err := filepath.Abs(filepath.Join("..", "..", "..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	demo, err := filepath.Abs(filepath.Join("testdata", "demo"))
	if err != nil {
		t.Fatal(err)
	}
	replace := map[string]string{}
	for _, f := range []string{"api/alpha/schema.gen.go", "api/alpha/rpc.gen.go", "api/beta/rpc.gen.go", "api/id/id.gen.go"} {
		replace[filepath.Join(root, f)] = filepath.Join(demo, f)
	}
	replace[filepath.Join(root, "api/alpha/behaviour_test.go")] = filepath.Join(demo, "behaviour_test.go.txt")
	b, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	overlay, bin := filepath.Join(dir, "overlay.json"), filepath.Join(dir, "alpha.test")
	if err := os.WriteFile(overlay, b, 0o644); err != nil {
		t.Fatal(err)
	}
	// Two steps, because the folder of the packages exists only in the overlay.
	build := exec.Command("go", "test", "-c", "-vet=off", "-overlay", overlay, "-o", bin, "./api/alpha")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if out, err := exec.Command(bin).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

const schemaFile = `domain: demo
doc: A demo.
kinds:
  thing: {plural: things, prefix: th, scope: cluster, doc: A thing., spec: {size: {type: int, doc: Size.}}, status: {}}
`

const rpcFile = `domain: demo
doc: A demo.
messages:
  ask:
    doc: A question.
    fields:
      text: {type: string, doc: Text.}
      owner: {type: string, doc: Project.}
  answer:
    doc: An answer.
    fields:
      text: {type: string, doc: Text.}
  ref:
    doc: Names a thing.
    fields:
      thing: {type: ref, kind: thing, doc: Which.}
services:
  talk:
    doc: Talks.
    methods:
      say: {doc: Says., permission: read, project: owner, idempotent: true, request: ask, response: answer}
      hear: {doc: Hears., permission: read, project: any, out: answer}
`

// tree writes a domain under a new root.
func tree(t *testing.T, rpc string) string {
	t.Helper()
	root := t.TempDir()
	dir := filepath.Join(root, "api", "demo")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "schema.yml"), schemaFile)
	write(t, filepath.Join(dir, "rpc.yml"), rpc)
	return root
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestCheckMode(t *testing.T) {
	root := tree(t, rpcFile)
	if err := gogen.Run(root, true, generate); err == nil || !strings.Contains(err.Error(), "rpc.gen.go") {
		t.Errorf("nothing was generated yet: %v", err)
	}
	if err := gogen.Run(root, false, generate); err != nil {
		t.Fatal(err)
	}
	if err := gogen.Run(root, true, generate); err != nil {
		t.Error(err)
	}
}

func TestMistakesAreExplained(t *testing.T) {
	for name, c := range map[string]struct{ old, new, want string }{
		"no permission":      {"permission: read, project: any, out", "out", "doc and permission are required"},
		"no project":         {"permission: read, project: any, out", "permission: read, out", "method hear: project is required"},
		"unknown project":    {"project: owner", "project: onwer", `ask has no field "onwer"`},
		"project of nothing": {"project: any", "project: text", `there is no message before "text"`},
		"project of a kind without": {
			"project: owner, idempotent: true, request: ask, response: answer}\n", "project: thing, request: ref}\n", "a thing belongs to no project",
		},
		"project of public":   {"permission: read, project: any", "permission: public, project: any", "project means nothing"},
		"no audit":            {"permission: read, project: any", "permission: exec, project: any", "method hear: audit is required"},
		"audit of no kind":    {"project: owner", "project: owner, audit: thign text", `audit "thign text" is not true, false, or a kind`},
		"audit of no field":   {"project: owner", "project: owner, audit: thing txet", `audit "txet": ask has no field "txet"`},
		"audit of no request": {"project: any", "project: any, audit: thing text", `there is no message before "text"`},
		"unknown permission":  {"permission: read, project: any, out", "permission: raed, project: any, out", `did you mean "read"?`},
		"unknown message":     {"request: ask", "request: aks", `rpc.yml:21: method say: the message "aks" of request does not exist; did you mean "ask"?`},
		"bytes as request":    {"request: ask", "request: bytes", `the message "bytes"`},
		"unknown key":         {"idempotent: true", "idempotant: true", `unknown key "idempotant"; did you mean "idempotent"?`},
		"response of stream":  {"out: answer", "out: answer, response: answer", "answers with out"},
		"idempotent stream":   {"out: answer", "out: answer, idempotent: true", "streams are never repeated"},
		"no methods":          {rpcFile[strings.Index(rpcFile, "    methods"):], "", "doc and methods are required"},
		"wrong folder":        {"domain: demo", "domain: other", "is in the folder"},
		"same message twice":  {"  answer:\n", "  ask:\n", "is repeated"},
		"unknown kind":        {"type: string", "type: ref, kind: thign", `kind "thign" does not exist; did you mean "thing"?`},
		"index in message":    {"type: string", "type: string, index: true", "are for fields of spec and status"},
	} {
		t.Run(name, func(t *testing.T) {
			changed := strings.Replace(rpcFile, c.old, c.new, 1)
			if changed == rpcFile {
				t.Fatal("the change does not apply")
			}
			if err := gogen.Run(tree(t, changed), false, generate); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

// TestOnlyAdditionsAreAccepted: what is added is fine; what an old peer would misunderstand
// is refused.
func TestOnlyAdditionsAreAccepted(t *testing.T) {
	for name, c := range map[string]struct{ old, new, want string }{
		"new field":        {"      text: {type: string, doc: Text.}\n", "      text: {type: string, doc: Text.}\n      more: {type: int, doc: More.}\n", ""},
		"new method":       {"      hear:", "      shout: {doc: Shouts., permission: exec, project: any, audit: true}\n      hear:", ""},
		"removed method":   {"      hear: {doc: Hears., permission: read, project: any, out: answer}\n", "", ""},
		"other permission": {"permission: read", "audit: true, permission: admin", ""},
		"new type":         {"text: {type: string", "text: {type: int", "incompatible change"},
		"new required":     {"      text: {type: string, doc: Text.}\n", "      text: {type: string, doc: Text.}\n      more: {type: int, required: true, doc: More.}\n", "incompatible change"},
		"other response":   {"response: answer", "response: ask", "incompatible change"},
		"stream now":       {"idempotent: true, request: ask, response: answer", "request: ask, out: answer", "incompatible change"},
	} {
		t.Run(name, func(t *testing.T) {
			root := tree(t, rpcFile)
			if err := gogen.Run(root, false, generate); err != nil {
				t.Fatal(err)
			}
			changed := strings.Replace(rpcFile, c.old, c.new, 1)
			if changed == rpcFile {
				t.Fatal("the change does not apply")
			}
			write(t, filepath.Join(root, "api", "demo", "rpc.yml"), changed)
			err := gogen.Run(root, false, generate)
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}
