package api_test

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/api"
	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

func TestKind(t *testing.T) {
	for in, want := range map[string]string{
		"sandbox": "sandbox", "sandboxes": "sandbox", "sb": "sandbox", "sandbox-pool": "sandbox_pool", "Pools": "sandbox_pool", "version": "app_version",
	} {
		if k, err := api.Kind(in); err != nil || k.Name != want {
			t.Errorf("Kind(%q) = %v, %v; want %s", in, k, err, want)
		}
	}
	_, err := api.Kind("sandbx")
	if !errs.Is(err, errs.NotFound) || !strings.Contains(errs.HintOf(err), `"sandbox"`) {
		t.Errorf("got %v, hint %q", err, errs.HintOf(err))
	}
	if _, err = api.Kind("zzzzzz"); errs.HintOf(err) == "" {
		t.Error("no hint for a kind like none")
	}
}

// TestKindsAreWhole: every kind makes, renders and describes its objects, and
// every table works on an object without any value.
func TestKindsAreWhole(t *testing.T) {
	kinds := api.Kinds()
	if len(kinds) < 10 {
		t.Fatalf("only %d kinds", len(kinds))
	}
	for i, k := range kinds {
		if i > 0 && kinds[i-1].Name >= k.Name {
			t.Errorf("%s is not in order", k.Name)
		}
		o := k.New()
		if o.EntityKind() != k {
			t.Errorf("%s: New makes a %s", k.Name, o.EntityKind().Name)
		}
		rec := &schema.Record{Kind: k.Name}
		dec, err := k.Decode(rec)
		if err != nil || !reflect.DeepEqual(dec, o) {
			t.Errorf("%s: an empty record decodes to %+v, %v", k.Name, dec, err)
		}
		b, err := json.Marshal(o)
		if err != nil || !strings.HasPrefix(string(b), `{"kind":"`+k.Name+`"`) {
			t.Errorf("%s: JSON %s, %v", k.Name, b, err)
		}
		for _, c := range k.Columns {
			c.Value(o, time.Now())
		}
	}
}

func TestPresence(t *testing.T) {
	p := sandbox.NewSandboxPool()
	p.Project, p.Spec.Replicas, p.Spec.Template.Image = "proj-1", 0, "x@sha256:1"
	p.Spec.Template.StopTimeout = 0
	rec, err := sandbox.SandboxPoolKind.Encode(p)
	if err != nil {
		t.Fatal(err)
	}
	o, err := sandbox.SandboxPoolKind.Decode(rec)
	if err != nil {
		t.Fatal(err)
	}
	got := o.(*sandbox.SandboxPool).Spec
	if got.Replicas != 0 || got.Template.StopTimeout != 0 {
		t.Errorf("zero became the default: %+v", got)
	}
	if got.Template.Resources.CPUMillis != 1000 || got.Template.Network != sandbox.NetworkModeBridge || got.Template.Probe != nil {
		t.Errorf("defaults: %+v", got.Template)
	}
	p.Spec.Template.Resources.CPUMillis = 5
	_, err = sandbox.SandboxPoolKind.Encode(p)
	if !errs.Is(err, errs.InvalidArgument) || !strings.Contains(err.Error(), "spec.template.resources.cpu_millis: 5 is below the minimum 10") ||
		errs.Detail(err, "attr") != "spec.template.resources.cpu_millis" {
		t.Errorf("got %v", err)
	}
	p.Spec.Template.Resources.CPUMillis, p.Spec.Template.Resources.MemoryBytes = 1000, 2<<10
	if _, err = sandbox.SandboxPoolKind.Encode(p); err == nil || !strings.Contains(err.Error(), "memory_bytes: 2048 (2 KiB) is below the minimum 33554432 (32 MiB)") {
		t.Errorf("got %v", err)
	}
}

func TestUniqueAndRefs(t *testing.T) {
	r := app.NewRoute()
	r.Project, r.Spec.Host, r.Spec.Key, r.Spec.App = "proj-1", "*", "*/", "app-1"
	rec, err := app.RouteKind.Encode(r)
	if err != nil {
		t.Fatal(err)
	}
	e, err := app.RouteKind.Extract(rec)
	if err != nil {
		t.Fatal(err)
	}
	want := schema.Extracted{
		Index:  []schema.IndexEntry{{Attr: app.RouteAttrHost, Value: []byte("*")}, {Attr: app.RouteAttrApp, Value: []byte("app-1")}},
		Unique: []schema.UniqueEntry{{Attr: app.RouteAttrKey, Value: []byte("*/"), Global: true}},
		Refs:   []schema.RefEntry{{Attr: app.RouteAttrApp, Kind: "app", ID: "app-1", OnDelete: schema.Cascade}},
	}
	if !reflect.DeepEqual(e, want) {
		t.Errorf("got %+v, want %+v", e, want)
	}
}

func sample() *sandbox.Sandbox {
	s := sandbox.NewSandbox()
	s.ID, s.Project, s.Name = schema.NewID("sb"), "proj-1", "web-1"
	s.Spec.App, s.Spec.AppVersion, s.Spec.Pool, s.Spec.Node = "app-1", "ver-1", "pool-1", "node-1"
	s.Spec.Template.Image, s.Spec.Template.Env = "x@sha256:1", map[string]string{"A": "1", "B": "2"}
	s.Spec.Template.Ports = []sandbox.Port{{Name: "http", Number: 8080}}
	s.Spec.Template.Probe = new(sandbox.Probe)
	s.Spec.Template.Probe.SetDefaults()
	now := time.Now()
	s.Status.StartedAt = &now
	return s
}

func BenchmarkEncode(b *testing.B) {
	s := sample()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := sandbox.SandboxKind.Encode(s); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDecode(b *testing.B) {
	rec, err := sandbox.SandboxKind.Encode(sample())
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := sandbox.SandboxKind.Decode(rec); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkExtract(b *testing.B) {
	rec, err := sandbox.SandboxKind.Encode(sample())
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := sandbox.SandboxKind.Extract(rec); err != nil {
			b.Fatal(err)
		}
	}
}
