package cli_test

import (
	"strings"
	"testing"

	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/entity"
)

func TestPolicy(t *testing.T) {
	f := newFake(t)
	contains(t, ok(t, "policy", "set", "--template", "python,base", "--max-egress", "listed", "--network", "pypi.org", "--max-ttl", "1h"), "python, base", "pypi.org", "1h0m0s")
	contains(t, ok(t, "policy", "set", "--confine", "--max-cpu", "2", "--max-memory", "4GiB", "--max-disk", "1GiB", "--max-pids", "50", "--private-previews", "--max-key-ttl", "720h", "--json"), `"confine": true`)
	contains(t, ok(t, "policy", "clear", "max-ttl", "template", "max_pids"), "4 GiB")
	p, err := entity.Get[core.Project](t.Context(), f.store, f.project)
	if err != nil {
		t.Fatal(err)
	}
	if q := p.Spec.Policy; q == nil || q.MaxTTL != nil || q.Templates != nil || q.MaxPIDs != nil || !q.Confine || *q.MaxCPUMillis != 2000 || q.MaxEgress != core.PolicyEgressListed {
		t.Errorf("%+v", q)
	}
	open := sandbox.NewPreview()
	open.ID, open.Name, open.Project = "pv-1", "3000-sbabcdef0123456789", f.project
	open.Spec = sandbox.PreviewSpec{Sandbox: "sb-abcdef0123456789", Port: 3000, Public: true, Key: []byte("public key")}
	f.shop()
	f.create(open)
	if r := run(t, false, "", "audit", "policy"); r.code != exit.Failed || !strings.Contains(r.out, "default\tpreview\t3000-sbabcdef0123456789\tprivate_previews\t") {
		t.Errorf("report with violations: %+v", r)
	}
	contains(t, ok(t, "policy", "clear"), "-")
	if r := run(t, false, "", "audit", "policy", "--json"); r.code != 0 || !strings.Contains(r.out, `"violations": 0`) || !strings.Contains(r.out, "it is public") {
		t.Errorf("report without: %+v", r)
	}
	for _, args := range [][]string{{"set"}, {"set", "--max-egress", "some"}, {"set", "--max-ttl", "1ms"}, {"set", "--max-cpu", "many"}, {"clear", "fish"}} {
		if r := run(t, false, "", append([]string{"policy"}, args...)...); r.code != exit.Usage {
			t.Errorf("%q: %+v", args, r)
		}
	}
	if r := run(t, false, "", "policy", "set", "--network", "pypi.org"); r.code == 0 || !strings.Contains(r.err, "--max-egress listed") {
		t.Errorf("networks alone: %+v", r)
	}
}
