package templates

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/pkg/errs"
)

func TestReadyChecks(t *testing.T) {
	server := []string{"server"}
	probe := func(change func(*sandbox.Probe)) *sandbox.Probe {
		p := &sandbox.Probe{}
		p.SetDefaults()
		change(p)
		return p
	}
	for what, c := range map[string]struct {
		ready *Ready
		start []string
		want  *sandbox.Probe
		says  string
	}{
		"none":     {nil, nil, nil, ""},
		"at once":  {nil, server, nil, ""},
		"port":     {&Ready{Port: 80}, server, probe(func(p *sandbox.Probe) { p.Port = 80 }), ""},
		"path":     {&Ready{Port: 80, Path: "/x"}, server, probe(func(p *sandbox.Probe) { p.Kind, p.Port, p.Path = sandbox.ProbeKindHTTP, 80, "/x" }), ""},
		"command":  {&Ready{Command: server}, server, probe(func(p *sandbox.Probe) { p.Kind, p.Command = sandbox.ProbeKindExec, server }), ""},
		"timeout":  {&Ready{Port: 80, Timeout: time.Hour}, server, probe(func(p *sandbox.Probe) { p.Port, p.Deadline = 80, time.Hour }), ""},
		"no start": {&Ready{Port: 80}, nil, nil, "no start command"},
		"nothing":  {&Ready{}, server, nil, "0 is not a port"},
		"big port": {&Ready{Port: 70000}, server, nil, "70000 is not a port"},
		"both":     {&Ready{Port: 80, Command: server}, server, nil, "not both"},
		"relative": {&Ready{Port: 80, Path: "x"}, server, nil, "does not begin with /"},
		"short":    {&Ready{Port: 80, Timeout: time.Millisecond}, server, nil, "shorter than"},
	} {
		t.Run(what, func(t *testing.T) {
			got, err := c.ready.probe(c.start)
			if !reflect.DeepEqual(got, c.want) || (err == nil) != (c.says == "") {
				t.Errorf("%+v, %v", got, err)
			}
			if c.says != "" && (!errs.Is(err, errs.InvalidArgument) || !strings.Contains(err.Error(), c.says)) {
				t.Errorf("%v, want %q", err, c.says)
			}
		})
	}
}
