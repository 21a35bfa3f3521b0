package lambda_test

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/lambda"
)

// The context of each language names its fields as AWS does.
func TestContextOfALanguage(t *testing.T) {
	for file, want := range map[string][]string{
		"app.py":   {`"aws_request_id":"7"`, `"function_name":"app"`, `"memory_limit_in_mb":"256"`, `"functions":["main"]`},
		"app.mjs":  {`"awsRequestId":"7"`, `"functionName":"app"`, `"memoryLimitInMB":"256"`, `"functions":["main"]`},
		"index.js": {`"invokedFunctionArn":"arn:aws:lambda:`},
	} {
		p, err := lambda.New(lambda.Invocation{File: file, Handler: "app.main", Event: json.RawMessage(`[1]`), Context: json.RawMessage(`{"awsRequestId": "7"}`), Memory: 256 << 20})
		if err != nil {
			t.Fatal(err)
		}
		request := string(p.Files[".sandbox-run/request.json"])
		for _, w := range append(want, `"event":[1]`, `"timeout_ms":300000`) {
			if !strings.Contains(request, w) {
				t.Errorf("%s: no %s in %s", file, w, request)
			}
		}
		if p.Env["AWS_LAMBDA_FUNCTION_MEMORY_SIZE"] != "256" || p.Env["_HANDLER"] != strings.TrimSuffix(file, file[strings.Index(file, "."):])+".main" {
			t.Errorf("%v", p.Env)
		}
	}
}

// An invocation with a key is the same program each time, in a folder of its own.
func TestInvocationWithAKey(t *testing.T) {
	programs := map[string]*lambda.Program{}
	for _, key := range []string{"a", "a", "b"} {
		p, err := lambda.New(lambda.Invocation{File: "app.py", Key: key})
		if err != nil {
			t.Fatal(err)
		}
		if old := programs[key]; old != nil && !reflect.DeepEqual(old, p) {
			t.Errorf("%v\n%v", old, p)
		}
		if programs[key] = p; p.Args[0] != ".sandbox-run/"+p.RequestID || p.Files[p.Args[0]+"/request.json"] == nil {
			t.Errorf("%q", p.Args)
		}
	}
	if programs["a"].RequestID == programs["b"].RequestID {
		t.Error("two keys have the same request id")
	}
}

func TestRefusedInvocations(t *testing.T) {
	good := lambda.Invocation{File: "h.py", Code: []byte("def handler(e, c): pass")}
	for want, change := range map[string]func(*lambda.Invocation){
		"not a handler in Python":   func(in *lambda.Invocation) { in.File = "h.rb" },
		"not the name":              func(in *lambda.Invocation) { in.File = "../h.py" },
		"the event is not JSON":     func(in *lambda.Invocation) { in.Event = json.RawMessage("{") },
		"at most 6291456":           func(in *lambda.Invocation) { in.Event = make([]byte, lambda.MaxEvent+1) },
		"not a JSON object":         func(in *lambda.Invocation) { in.Context = json.RawMessage("[]") },
		"a timeout of 2h0m0s":       func(in *lambda.Invocation) { in.Timeout = 2 * time.Hour },
		"a timeout of -1s is not":   func(in *lambda.Invocation) { in.Timeout = -time.Second },
		`".h.py" is not the name`:   func(in *lambda.Invocation) { in.File = ".h.py" },
		"context is not a JSON obj": func(in *lambda.Invocation) { in.Context = json.RawMessage("null") },
	} {
		in := good
		change(&in)
		if _, err := lambda.New(in); !errs.Is(err, errs.InvalidArgument) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", want, err)
		}
	}
	if _, err := lambda.New(good); err != nil {
		t.Error(err)
	}
}

// A Go handler is found before a sandbox is made.
func TestGoHandlers(t *testing.T) {
	for _, c := range []struct {
		code, handler string
		want          lambda.Outcome
	}{
		{"package main\nfunc HandleRequest() {}", "", ""},
		{"package main\nfunc Other() {}", "main.Other", ""},
		{"package main\nfunc Other() {}", "", lambda.OutcomeUndefined},
		{"package main\ntype T int\nfunc (T) Handler() {}", "", lambda.OutcomeUndefined},
		{"package main\nfunc main() {}", "", ""},
		{"package other\nfunc Handler() {}", "", lambda.OutcomeUndefined},
		{"package main\nfunc Handler( {}", "", lambda.OutcomeSyntax},
	} {
		_, err := lambda.New(lambda.Invocation{File: "main.go", Code: []byte(c.code), Handler: c.handler})
		var h *lambda.HandlerError
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: %v", c.code, err)
		case c.want != "" && (!errors.As(err, &h) || h.Outcome != c.want):
			t.Errorf("%s: %v, want %s", c.code, err, c.want)
		}
	}
}

// What a handler does to the file of its result is not trusted.
func TestReadResult(t *testing.T) {
	for _, c := range []struct {
		file string
		code int
		want lambda.Outcome
		kind string
	}{
		{`{"outcome":"success","value":{"a":1}}`, 0, lambda.OutcomeSuccess, ""},
		{`{"outcome":"success"}`, 0, lambda.OutcomeSuccess, ""},
		{`{"outcome":"error","error":{"errorType":"E","errorMessage":"m"}}`, 0, lambda.OutcomeError, "E"},
		{`{"outcome":"error"}`, 0, lambda.OutcomeError, "Runtime.Unknown"},
		{`{"outcome":"syntax"}`, 0, lambda.OutcomeSyntax, "Runtime.Unknown"},
		{`{"outcome":"timeout"}`, 0, lambda.OutcomeError, "Runtime.InvalidResult"},
		{`[]`, 0, lambda.OutcomeError, "Runtime.InvalidResult"},
		{``, 124, lambda.OutcomeTimeout, "Sandbox.Timedout"},
		{``, 3, lambda.OutcomeError, "Runtime.ExitError"},
	} {
		r := lambda.ReadResult([]byte(c.file), c.code, time.Second)
		if r.Outcome != c.want || (r.Error == nil) != (c.kind == "") || r.Error != nil && r.Error.Type != c.kind {
			t.Errorf("%q: %+v %+v", c.file, r, r.Error)
		}
		if r.Outcome == lambda.OutcomeSuccess && !json.Valid(r.Value) {
			t.Errorf("%q: value %q", c.file, r.Value)
		}
	}
}
