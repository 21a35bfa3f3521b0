package rest

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"miren.dev/runtime/api/execution"
	"miren.dev/runtime/api/session"
	"miren.dev/runtime/pkg/errs"
)

const handlerBody = `{"handler": {"file": "app.py", "code": "def handler(e, c): return e", "event": {"a": 1}}, "env": {"TZ": "CET"}}`

func decodeExecute(t *testing.T, body string) *Execute {
	t.Helper()
	x := new(Execute)
	if err := json.Unmarshal([]byte(body), x); err != nil {
		t.Fatal(err)
	}
	return x
}

// TestHandlerOfAnExecution: with an idempotency key a repeated request is the
// same submission; the variables of the request win.
func TestHandlerOfAnExecution(t *testing.T) {
	a, err := decodeExecute(t, handlerBody).request("shop", "k")
	if err != nil {
		t.Fatal(err)
	}
	b, err := decodeExecute(t, handlerBody).request("shop", "k")
	if err != nil || !reflect.DeepEqual(a, b) {
		t.Errorf("%v\n%+v\n%+v", err, a, b)
	}
	if c, err := decodeExecute(t, handlerBody).request("shop", ""); err != nil || reflect.DeepEqual(a.Args, c.Args) {
		t.Errorf("without a key: %v, %v", c.Args, err)
	}
	if a.Language != "python" || a.Env["TZ"] != "CET" || a.Env["_HANDLER"] != "app.handler" || a.Labels[session.LabelHandler] == "" {
		t.Errorf("%+v", a)
	}
	for body, want := range map[string]string{
		strings.Replace(handlerBody, `"env"`, `"code": "1", "env"`, 1):   "either code or command or a handler",
		strings.Replace(handlerBody, `"env"`, `"args": ["1"], "env"`, 1): "belong to code",
		strings.Replace(handlerBody, "app.py", "app.rb", 1):              "not a handler",
		strings.Replace(handlerBody, "app.py", "app.go", 1):              "Runtime.UserCodeSyntaxError",
	} {
		if _, err := decodeExecute(t, body).request("shop", ""); !errs.Is(err, errs.InvalidArgument) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", body, err)
		}
	}
}

// TestResultOfAHandler is in the answer of an execution that invoked one.
func TestResultOfAHandler(t *testing.T) {
	e := execution.NewExecution()
	result := []byte(`{"outcome": "success", "value": 42}`)
	if r := handlerResult(e, result); r != nil {
		t.Errorf("%+v", r)
	}
	e.Labels = map[string]string{session.LabelHandler: "true"}
	if r := handlerResult(e, result); r.Outcome != "success" || string(r.Value) != "42" {
		t.Errorf("%+v", r)
	}
	e.Status.ExitCode = optionalOf(int64(124))
	if r := handlerResult(e, nil); r.Outcome != "timeout" || r.Error == nil {
		t.Errorf("%+v", r)
	}
}
