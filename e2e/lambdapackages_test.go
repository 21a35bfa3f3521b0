package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// awsHandler is a handler as AWS documents it, with aws-lambda-go.
const awsHandler = `package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing/iotest"

	"github.com/aws/aws-lambda-go/events"
	"github.com/aws/aws-lambda-go/lambda"
	"github.com/aws/aws-lambda-go/lambdacontext"
)

func handle(ctx context.Context, r events.APIGatewayProxyRequest) (any, error) {
	fmt.Println("log line")
	c, ok := lambdacontext.FromContext(ctx)
	_, bounded := ctx.Deadline()
	switch {
	case !ok || !bounded:
		return nil, errors.New("the context is empty")
	case r.Path == "/panic":
		panic("a bug")
	case r.Path == "/stream":
		return strings.NewReader("streamed"), nil
	case r.Path == "/broken":
		return io.MultiReader(strings.NewReader("part"), iotest.ErrReader(errors.New("the stream broke"))), nil
	case r.Path == "":
		return nil, errors.New("no path")
	}
	return events.APIGatewayProxyResponse{StatusCode: 200, Body: r.Path + " " + c.AwsRequestID, Headers: map[string]string{
		"arn": c.InvokedFunctionArn, "function": lambdacontext.FunctionName, "log": lambdacontext.LogGroupName,
		"memory": fmt.Sprint(lambdacontext.MemoryLimitInMB), "version": lambdacontext.FunctionVersion,
	}}, nil
}
`

const awsMain = "\nfunc main() { lambda.Start(handle) }\n"

const (
	awsModule = "module handler\n\ngo 1.26\n\nrequire github.com/aws/aws-lambda-go v1.55.1\n"
	awsSums   = `github.com/aws/aws-lambda-go v1.55.1 h1:We2cCp4BwqqH/JW+bEEo1FhgG71rslvjfi4y7KmlrR0=
github.com/aws/aws-lambda-go v1.55.1/go.mod h1:V+NzkHNR6vBC8C1PDloqSLE+7jYWFiPvJJFiCiTm8nE=
`
)

// TestSandboxRunWithPackages invokes handlers whose packages are stated next to
// them and come from the registries: aws-lambda-go itself, pure and compiled
// packages of Python, and packages of Node.js.
func TestSandboxRunWithPackages(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go/main.go": awsHandler + awsMain, "go/go.mod": awsModule, "go/go.sum": awsSums,
		"sums/main.go": awsHandler + awsMain, "sums/go.mod": awsModule,
		"wrongsums/main.go": awsHandler + awsMain, "wrongsums/go.mod": awsModule, "wrongsums/go.sum": strings.ReplaceAll(awsSums, "h1:W", "h1:X"),
		"module/main.go": awsHandler + awsMain,
		"function/main.go": `package main

import "github.com/aws/aws-lambda-go/events"

func Handler(e events.SQSEvent) (int, error) { return len(e.Records), nil }
`, "function/go.mod": awsModule, "function/go.sum": awsSums,
		"python/app.py":              "import six, markupsafe\ndef handler(e, c): return [six.__version__, str(markupsafe.escape(e['text']))]\n",
		"python/requirements.txt":    "six==1.17.0\nmarkupsafe==3.0.2\n",
		"nopackage/app.py":           "def handler(e, c): return 1\n",
		"nopackage/requirements.txt": "six==0.0.999\n",
		"node/index.mjs":             "import ms from 'ms';\nexport const handler = async (e) => ms(e.time);\n",
		"node/package.json":          `{"type": "module", "dependencies": {"ms": "2.1.3"}}`,
		"require/index.js":           "const ms = require('ms');\nexports.handler = async (e) => ms(e.time);\n",
		"require/package.json":       `{"dependencies": {"ms": "2.1.3"}}`,
		"nonode/index.js":            "exports.handler = async () => 1;\n",
		"nonode/package.json":        `{"dependencies": {"ms": "0.0.999"}}`,
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, path, text)
	}
	about := []string{"--context", `{"awsRequestId": "r-1", "logGroupName": "/logs"}`}
	for name, c := range map[string]struct {
		args   []string
		code   int
		stdout []string // parts
		stderr []string
	}{
		"program": {append(about, "go/main.go", "--event", `{"path": "/a"}`), 0,
			[]string{`"statusCode": 200`, `"body": "/a r-1"`, `"arn": "arn:aws:lambda:us-east-1:000000000000:function:main"`, `"function": "main"`,
				`"log": "/logs"`, `"memory": "512"`, `"version": "$LATEST"`}, []string{"log line"}},
		"program fails":           {[]string{"go/main.go"}, 1, nil, []string{"errorString: no path"}},
		"program panics":          {[]string{"go/main.go", "--event", `{"path": "/panic"}`}, 1, nil, []string{"string: a bug", "main.go:24 handle"}},
		"program streams":         {[]string{"go/main.go", "--event", `{"path": "/stream"}`}, 0, []string{"streamed\n"}, nil},
		"program's stream breaks": {[]string{"go/main.go", "--event", `{"path": "/broken"}`}, 1, nil, []string{"errorString: the stream broke"}},
		"program without go.sum":  {[]string{"sums/main.go", "--event", `{"path": "/a"}`}, 0, []string{`"statusCode": 200`}, nil},
		"program without go.mod":  {[]string{"module/main.go", "--event", `{"path": "/a"}`}, 0, []string{`"statusCode": 200`}, nil},
		"program of other sums":   {[]string{"wrongsums/main.go"}, 3, nil, []string{"checksum mismatch", "Runtime.BuildFailed"}},
		"function":                {[]string{"function/main.go", "--event", `{"Records": [{}, {}]}`}, 0, []string{"2\n"}, nil},
		"python":                  {[]string{"python/app.py", "--event", `{"text": "<a>"}`, "--profile"}, 0, []string{`"1.17.0"`, `"&lt;a&gt;"`}, []string{"packages "}},
		"python, no such package": {[]string{"nopackage/app.py"}, 1, nil, []string{"Runtime.Requirements", "six==0.0.999"}},
		"node module":             {[]string{"node/index.mjs", "--event", `{"time": "2m"}`, "--profile"}, 0, []string{"120000\n"}, []string{"packages "}},
		"node":                    {[]string{"require/index.js", "--event", `{"time": "1s"}`}, 0, []string{"1000\n"}, nil},
		"node, no such package":   {[]string{"nonode/index.js"}, 1, nil, []string{"Runtime.Requirements"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			res := shared.try(t, dir, append([]string{"sandbox-run"}, c.args...)...)
			if res.Code != c.code {
				t.Fatalf("want exit code %d: %s", c.code, res)
			}
			contains(t, "stdout", res.Stdout, c.stdout...)
			contains(t, "stderr", res.Stderr, c.stderr...)
		})
	}
}
