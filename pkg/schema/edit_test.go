package schema

import (
	"bytes"
	"math"
	"reflect"
	"testing"

	"miren.dev/runtime/pkg/errs"
)

// edited is a spec of which a program knows only half of the fields.
type edited struct {
	Count *int64        `cbor:"1,keyasint,omitempty"`
	Other string        `cbor:"2,keyasint,omitempty"`
	Next  ID            `cbor:"3,keyasint,omitempty"`
	List  []ID          `cbor:"4,keyasint,omitempty"`
	Map   map[string]ID `cbor:"5,keyasint,omitempty"`
}

func encode(t *testing.T, v any) []byte {
	t.Helper()
	b, err := Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestAddInt(t *testing.T) {
	count := &Attr{Path: "spec.count", Number: 1, Type: "int"}
	r := &Record{Kind: "thing", Meta: Meta{ID: "thing-1"}, Spec: encode(t, edited{Other: "kept"})}
	shared := bytes.Clone(r.Spec)
	before := r.Spec
	for _, want := range []int64{5, 10} {
		if sum, err := count.AddInt(r, 5); err != nil || sum != want {
			t.Fatalf("sum %d, %v, want %d", sum, err, want)
		}
	}
	var got edited
	if err := Unmarshal(r.Spec, &got); err != nil || *got.Count != 10 || got.Other != "kept" {
		t.Errorf("after it %+v, %v", got, err)
	}
	if !bytes.Equal(before, shared) {
		t.Error("the bytes that others share were changed")
	}
	if sum, err := (&Attr{Path: "status.count", Number: 7, Type: "int", Default: "3"}).AddInt(r, -4); err != nil || sum != -1 {
		t.Errorf("from a default: %d, %v", sum, err)
	}
	for _, delta := range []int64{math.MaxInt64, math.MinInt64} {
		r := *r
		if _, err := count.AddInt(&r, delta); err != nil {
			if !errs.Is(err, errs.InvalidArgument) {
				t.Error(err)
			}
			continue
		}
		if _, err := count.AddInt(&r, delta); !errs.Is(err, errs.InvalidArgument) {
			t.Errorf("overflow: %v", err)
		}
	}
	r.Spec = []byte{0xff}
	if _, err := count.AddInt(r, 1); !errs.Is(err, errs.Corrupt) {
		t.Errorf("broken record: %v", err)
	}
}

func TestClearRef(t *testing.T) {
	full := edited{Other: "kept", Next: "a", List: []ID{"a", "b", "a"}, Map: map[string]ID{"x": "a", "y": "b"}}
	for _, c := range []struct {
		attr Attr
		ids  []ID
		want edited
	}{
		{Attr{Path: "spec.next", Number: 3, Type: "ref thing"}, []ID{"a"}, edited{Other: "kept", List: full.List, Map: full.Map}},
		{Attr{Path: "spec.next", Number: 3, Type: "ref thing"}, []ID{"b"}, full},
		{Attr{Path: "spec.list", Number: 4, Type: "list of ref thing"}, []ID{"a"}, edited{Other: "kept", Next: "a", List: []ID{"b"}, Map: full.Map}},
		{Attr{Path: "spec.list", Number: 4, Type: "list of ref thing"}, []ID{"a", "b", "c"}, edited{Other: "kept", Next: "a", Map: full.Map}},
		{Attr{Path: "spec.map", Number: 5, Type: "map of ref thing"}, []ID{"a"}, edited{Other: "kept", Next: "a", List: full.List, Map: map[string]ID{"y": "b"}}},
		{Attr{Path: "spec.map", Number: 5, Type: "map of ref thing"}, []ID{"a", "b"}, edited{Other: "kept", Next: "a", List: full.List}},
		{Attr{Path: "spec.absent", Number: 9, Type: "ref thing"}, []ID{"a"}, full},
	} {
		r := &Record{Kind: "thing", Meta: Meta{ID: "thing-1"}, Spec: encode(t, full)}
		for _, id := range c.ids {
			if err := c.attr.ClearRef(r, id); err != nil {
				t.Fatalf("%s: %v", c.attr.Path, err)
			}
		}
		var got edited
		if err := Unmarshal(r.Spec, &got); err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s without %v: %+v, %v", c.attr.Path, c.ids, got, err)
		}
	}
}
