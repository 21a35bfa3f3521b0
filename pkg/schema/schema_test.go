package schema

import (
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/pkg/errs"
)

func TestNewID(t *testing.T) {
	re := regexp.MustCompile(`^sb-[0-9a-hjkmnp-tv-z]{16}$`)
	seen := map[ID]bool{}
	for range 1000 {
		id := NewID("sb")
		if !re.MatchString(string(id)) || !validID(id) || seen[id] {
			t.Fatalf("id %q", id)
		}
		seen[id] = true
	}
}

func TestValidateMeta(t *testing.T) {
	tenant := &Kind{Name: "thing", Prefix: "th", Scope: ScopeProject, NameRequired: true}
	cluster := &Kind{Name: "box", Prefix: "box", Scope: ScopeCluster}
	ok := Meta{ID: "th-1", Project: "proj-1", Name: "a-1", Labels: map[string]string{"team": "x", "a.b/c-d_e": ""}}
	with := func(f func(*Meta)) Meta {
		m := ok
		f(&m)
		return m
	}
	many := map[string]string{}
	for i := range MaxLabels + 1 {
		many["k"+strings.Repeat("x", i)] = ""
	}
	for _, c := range []struct {
		name string
		kind *Kind
		meta Meta
		want string // part of the error; empty: fine
	}{
		{"fine", tenant, ok, ""},
		{"no id yet", tenant, with(func(m *Meta) { m.ID = "" }), ""},
		{"longest name", tenant, with(func(m *Meta) { m.Name = strings.Repeat("a", 63) }), ""},
		{"name too long", tenant, with(func(m *Meta) { m.Name = strings.Repeat("a", 64) }), "meta.name"},
		{"name ends in -", tenant, with(func(m *Meta) { m.Name = "a-" }), "meta.name"},
		{"name with newline", tenant, with(func(m *Meta) { m.Name = "a\n" }), "meta.name"},
		{"upper case", tenant, with(func(m *Meta) { m.Name = "A" }), "meta.name"},
		{"no name", tenant, with(func(m *Meta) { m.Name = "" }), "meta.name: is required"},
		{"other prefix", tenant, with(func(m *Meta) { m.ID = "sb-1" }), "meta.id"},
		{"id too long", tenant, with(func(m *Meta) { m.ID = ID("th-" + strings.Repeat("a", 64)) }), "meta.id"},
		{"no project", tenant, with(func(m *Meta) { m.Project = "" }), "meta.project: is required"},
		{"bad project", tenant, with(func(m *Meta) { m.Project = "A/B" }), "meta.project"},
		{"project of cluster kind", cluster, Meta{Project: "proj-1"}, "meta.project: must be empty"},
		{"cluster kind", cluster, Meta{}, ""},
		{"label key", tenant, with(func(m *Meta) { m.Labels = map[string]string{"A b": ""} }), "meta.labels"},
		{"label value", tenant, with(func(m *Meta) { m.Labels = map[string]string{"a": strings.Repeat("x", 257)} }), `meta.labels["a"]`},
		{"many labels", tenant, with(func(m *Meta) { m.Labels = many }), "meta.labels: 65 labels"},
	} {
		var v Validator
		validateMeta(&v, c.kind, &c.meta)
		err := v.Err()
		if c.want == "" {
			if err != nil {
				t.Errorf("%s: %v", c.name, err)
			}
			continue
		}
		if !errs.Is(err, errs.InvalidArgument) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", c.name, err, c.want)
		}
	}
}

func TestValidatorBoundsItsMessage(t *testing.T) {
	var v Validator
	for range 100 {
		v.Required("x", false)
	}
	err := v.Err()
	if !strings.HasSuffix(err.Error(), "; and 90 more") || errs.Detail(err, "attr") != "x" {
		t.Errorf("got %v", err)
	}
}

func TestCopySharesNothing(t *testing.T) {
	type inner struct{ L []string }
	type outer struct {
		P *inner
		M map[string]*inner
		T *time.Time
		S map[string]Secret
		A any
	}
	now := time.Now()
	in := &outer{&inner{[]string{"a"}}, map[string]*inner{"k": {[]string{"b"}}}, &now, map[string]Secret{"s": {sealed: []byte{1}}}, &inner{}}
	out := Copy(in)
	if !reflect.DeepEqual(in, out) {
		t.Fatalf("got %+v", out)
	}
	out.P.L[0], out.M["k"].L[0], out.S["t"], *out.T = "x", "x", Secret{}, time.Time{}
	out.A.(*inner).L = []string{"x"}
	if in.P.L[0] != "a" || in.M["k"].L[0] != "b" || len(in.S) != 1 || in.T.IsZero() || in.A.(*inner).L != nil {
		t.Errorf("the original changed: %+v", in)
	}
}

func TestCellsAreShort(t *testing.T) {
	now := time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC)
	n := int64(7)
	type word string
	for _, c := range []struct{ got, want string }{
		{Cell(nil), ""}, {Cell((*int64)(nil)), ""}, {Cell(&n), "7"}, {Cell(true), "yes"}, {Cell(false), "no"},
		{Cell(word("x")), "x"}, {Cell([]string{"a", "b"}), "a,b"}, {Cell([]int64{1, 2}), "1,2"},
		{Cell(90 * time.Second), "1m30s"}, {Cell(now), "2024-01-01T00:00:00Z"}, {Cell(time.Time{}), ""}, {Cell(1.5), "1.5"},
		{CellAge(time.Time{}, now), ""}, {CellAge(now.Add(time.Hour), now), "0s"}, {CellAge(now.Add(-90*time.Second), now), "90s"},
		{CellAge(now.Add(-3*time.Minute), now), "3m"}, {CellAge(now.Add(-5*time.Hour), now), "5h"}, {CellAge(now.Add(-72*time.Hour), now), "3d"},
		{CellBytes(0), "0 B"}, {CellBytes(1023), "1023 B"}, {CellBytes(512 << 20), "512 MiB"}, {CellBytes(3 << 29), "1.5 GiB"},
		{CellMillis(1500), "1.5"}, {CellMillis(2000), "2"}, {CellMillis(10), "0.01"},
	} {
		if c.got != c.want {
			t.Errorf("got %q, want %q", c.got, c.want)
		}
	}
}
