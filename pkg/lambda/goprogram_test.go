package lambda_test

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"miren.dev/runtime/pkg/lambda"
	"miren.dev/runtime/testsupport/need"
)

// goProgram answers as aws-lambda-go does: an error has frames, and that of a
// stream comes after its content.
const goProgram = `package main

import (
	"encoding/base64"
	"io"
	"net/http"
	"os"
	"strings"
)

func main() {
	root := "http://" + os.Getenv("AWS_LAMBDA_RUNTIME_API") + "/2018-06-01/runtime/invocation/"
	resp, _ := http.Get(root + "next")
	event, _ := io.ReadAll(resp.Body)
	root += resp.Header.Get("Lambda-Runtime-Aws-Request-Id")
	problem := "{\"errorMessage\": \"bad\", \"errorType\": \"T\", \"stackTrace\": [{\"path\": \"a.go\", \"line\": 3, \"label\": \"f\"}, \"text\"]}"
	switch string(event) {
	case "\"log\"":
		http.Post(root+"/response", "text/plain", strings.NewReader(os.Getenv("AWS_LAMBDA_LOG_GROUP_NAME")))
	case "\"error\"":
		http.Post(root+"/error", "application/json", strings.NewReader(problem))
	case "\"stream\"":
		req, _ := http.NewRequest("POST", root+"/response", io.MultiReader(strings.NewReader("part")))
		req.Trailer = http.Header{
			"Lambda-Runtime-Function-Error-Type": {"T"}, "Lambda-Runtime-Function-Error-Body": {base64.StdEncoding.EncodeToString([]byte(problem))},
		}
		http.DefaultClient.Do(req)
	}
	select {}
}
`

// TestGoProgram runs a program with the runtime interface that it is served.
func TestGoProgram(t *testing.T) {
	need.Tools(t, "go", "sh")
	run := func(event string) *lambda.Result {
		t.Helper()
		p, err := lambda.New(lambda.Invocation{File: "main.go", Code: []byte(goProgram), Event: json.RawMessage(event)})
		if err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		p.Files[p.File] = p.Code
		for name, content := range p.Files {
			path := filepath.Join(dir, name)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, content, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, "sh", append([]string{p.File}, p.Args...)...)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOWORK=off", "CGO_ENABLED=0")
		for k, v := range p.Env {
			cmd.Env = append(cmd.Env, k+"="+v)
		}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		b, err := os.ReadFile(filepath.Join(dir, lambda.ResultPath))
		if err != nil {
			t.Fatal(err)
		}
		return lambda.ReadResult(b, 0, 0)
	}
	if r := run(`"log"`); r.Outcome != lambda.OutcomeSuccess || string(r.Value) != `"/aws/lambda/main"` {
		t.Errorf("%+v %s", r, r.Value)
	}
	for _, event := range []string{`"error"`, `"stream"`} {
		r := run(event)
		if r.Outcome != lambda.OutcomeError || r.Error.Message != "bad" || r.Error.Type != "T" || !slices.Equal(r.Error.Trace, []string{"a.go:3 f", "text"}) {
			t.Errorf("%s: %+v %+v", event, r, r.Error)
		}
	}
}
