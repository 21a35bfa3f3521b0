package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const pythonHandler = `
import os
import helper

def handler(event, context):
    print("log line")
    if event.get("fail"):
        raise ValueError("bad " + event["fail"])
    if event.get("hang"):
        import threading
        threading.Event().wait()
    if event.get("exit"):
        os._exit(7)
    if event.get("raw"):
        return object()
    left = context.get_remaining_time_in_millis()
    return {
        "hello": helper.greet(event["name"]), "function": context.function_name, "memory": context.memory_limit_in_mb,
        "id": len(context.aws_request_id), "left": 0 < left <= 300000, "env": os.environ["STAGE"],
        "runtime": os.environ["AWS_LAMBDA_FUNCTION_NAME"],
    }
`

const nodeHandler = `
export const handler = async (event, context) => {
  console.log('log line');
  if (event.fail) throw new TypeError('bad ' + event.fail);
  return { hello: event.name, function: context.functionName, id: context.awsRequestId, left: context.getRemainingTimeInMillis() > 0 };
};
`

const callbackHandler = `
exports.handler = (event, context, callback) => { setTimeout(() => callback(null, event.name + '!'), 10); };
exports.silent = () => 42;
`

const goHandler = `package main

import (
	"context"
	"errors"
	"fmt"
)

type order struct{ Name string; Fail bool }

func HandleRequest(ctx context.Context, o order) (map[string]any, error) {
	fmt.Println("log line")
	if o.Fail {
		return nil, errors.New("no such order")
	}
	_, bounded := ctx.Deadline()
	return map[string]any{"hello": o.Name, "bounded": bounded}, nil
}
`

// goProgram speaks the runtime interface as aws-lambda-go does.
const goProgram = `package main

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"os"
)

func main() {
	root := "http://" + os.Getenv("AWS_LAMBDA_RUNTIME_API") + "/2018-06-01/runtime/invocation/"
	for {
		resp, err := http.Get(root + "next")
		if err != nil {
			panic(err)
		}
		var event struct{ Name string }
		body, _ := io.ReadAll(resp.Body)
		if json.Unmarshal(body, &event) != nil || resp.Header.Get("Lambda-Runtime-Deadline-Ms") == "" {
			os.Exit(9)
		}
		id := resp.Header.Get("Lambda-Runtime-Aws-Request-Id")
		if event.Name == "" {
			http.Post(root+id+"/error", "application/json", bytes.NewBufferString("{\"errorMessage\":\"no name\",\"errorType\":\"NoName\"}"))
			continue
		}
		http.Post(root+id+"/response", "application/json", bytes.NewBufferString("\"hello "+event.Name+"\""))
	}
}
`

// TestSandboxRun invokes handlers of each language by the program sandbox-run, and
// each exit code of it happens.
func TestSandboxRun(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"app.py": pythonHandler, "helper.py": "def greet(n): return 'hi ' + n", "broken.py": "def handler(:", "empty.py": "x = 1",
		"app.mjs": nodeHandler, "program.go": goProgram, "exits.go": "package main\n\nimport \"os\"\n\nfunc main() { os.Exit(3) }\n", "callback.js": callbackHandler, "broken.mjs": "export const = 1", "main.go": goHandler,
		"wrong.go": "package main\n\nfunc Handler() { undefined() }\n", "event.json": `{"name": "file"}`,
		"layer/python/layered.py": "x = 'from the layer'", "uses.py": "import layered\ndef lambda_handler(e, c): return layered.x",
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		args   []string
		code   int
		stdout []string // parts
		stderr []string
	}{
		{[]string{"app.py", "--file", "helper.py", "--env", "STAGE=test", "--event", `{"name": "Ada"}`, "--profile"}, 0,
			[]string{`"hello": "hi Ada"`, `"function": "app"`, `"memory": "512"`, `"id": 36`, `"left": true`, `"env": "test"`, `"runtime": "app"`}, []string{"log line", "init ", "memory "}},
		{[]string{"app.py", "--file", "helper.py", "--event", `{"fail": "luck"}`}, 1, nil, []string{"ValueError: bad luck", `app.py", line 8`}},
		{[]string{"app.py", "--file", "helper.py", "--event", `{"raw": true}`}, 1, nil, []string{"Runtime.MarshalError"}},
		{[]string{"app.py", "--file", "helper.py", "--event", `{"exit": true}`}, 1, nil, []string{"Runtime.ExitError: the process ended with exit code 7"}},
		{[]string{"app.py"}, 1, nil, []string{"Runtime.ImportModuleError: Unable to import module 'app': No module named 'helper'"}},
		{[]string{"absent.py"}, 2, nil, []string{"absent.py"}},
		{[]string{"app.py", "--event", "{"}, 2, nil, []string{"the event is not JSON"}},
		{[]string{"broken.py"}, 3, nil, []string{"Runtime.UserCodeSyntaxError"}},
		{[]string{"empty.py"}, 3, nil, []string{"Runtime.HandlerNotFound: Handler 'handler' missing on module 'empty'"}},
		{[]string{"app.py", "--file", "helper.py", "--event", `{"hang": true}`, "--timeout", "1s"}, 4, nil, []string{"Sandbox.Timedout: Task timed out after 1.00 seconds"}},
		{[]string{"app.py", "--memory", "1000TiB"}, 2, nil, []string{"above the maximum"}},
		{[]string{"app.py", "--memory", "16TiB"}, 5, nil, []string{"error:"}},
		{[]string{"uses.py", "--layer", "layer"}, 0, []string{"from the layer\n"}, nil},
		{[]string{"app.mjs", "--event", "@event.json", "--context", `{"awsRequestId": "r-1"}`}, 0, []string{`"hello": "file"`, `"function": "app"`, `"id": "r-1"`, `"left": true`}, []string{"log line"}},
		{[]string{"app.mjs", "--event", `{"fail": "js"}`}, 1, nil, []string{"TypeError: bad js"}},
		{[]string{"broken.mjs"}, 3, nil, []string{"Runtime.UserCodeSyntaxError"}},
		{[]string{"callback.js", "--event", `{"name": "late"}`}, 0, []string{"late!\n"}, nil},
		{[]string{"callback.js", "--handler", "callback.silent"}, 0, []string{"null\n"}, nil},
		{[]string{"callback.js", "--handler", "other"}, 3, nil, []string{"callback.js.other is undefined"}},
		{[]string{"main.go", "--event", `{"name": "gopher"}`}, 0, []string{`"hello": "gopher"`, `"bounded": true`}, []string{"log line"}},
		{[]string{"main.go", "--event", `{"fail": true}`}, 1, nil, []string{"errorString: no such order"}},
		{[]string{"main.go", "--event", `[]`}, 1, nil, []string{"Runtime.UnmarshalError"}},
		{[]string{"program.go", "--event", `{"name": "program"}`, "--profile"}, 0, []string{"hello program\n"}, []string{"memory "}},
		{[]string{"program.go"}, 1, nil, []string{"NoName: no name"}},
		{[]string{"exits.go"}, 1, nil, []string{"Runtime.ExitError: the process ended with exit code 3"}},
		{[]string{"wrong.go"}, 3, nil, []string{"undefined: undefined", "Runtime.BuildFailed"}},
	} {
		t.Run(strings.Join(c.args, " "), func(t *testing.T) {
			t.Parallel()
			res := shared.try(t, dir, append([]string{"sandbox-run"}, c.args...)...)
			if res.Code != c.code {
				t.Fatalf("want exit code %d: %s", c.code, res)
			}
			contains(t, "stdout", res.Stdout, c.stdout...)
			contains(t, "stderr", res.Stderr, c.stderr...)
			if c.code != 0 && res.Stdout != "" {
				t.Errorf("stdout %q", res.Stdout)
			}
		})
	}
	t.Run("by its name", func(t *testing.T) {
		t.Parallel()
		cmd := shared.command(t.Context(), dir, "uses.py", "--layer", "layer", "--json")
		cmd.Path, cmd.Args[0] = filepath.Join(bin, "sandbox-run"), "sandbox-run"
		out, err := cmd.Output()
		var d struct {
			RequestID string `json:"request_id"`
			Result    struct{ Outcome, Value string }
		}
		if err != nil || json.Unmarshal(out, &d) != nil || d.Result.Outcome != "success" || d.Result.Value != "from the layer" || len(d.RequestID) != 36 {
			t.Errorf("%v: %s", err, out)
		}
	})
}
