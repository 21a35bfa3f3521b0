package kit

import (
	"encoding/json"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/testsupport/history"
)

// thing and part are two kinds, made by hand so that the tests need no domain.
type thing struct {
	schema.Meta
	Spec thingSpec
}

type thingSpec struct{ Value, Owner string }

func (*thing) EntityKind() *schema.Kind { return thingKind }
func (t *thing) SpecPtr() any           { return &t.Spec }
func (*thing) StatusPtr() any           { return &struct{}{} }

type part struct{ thing }

func (*part) EntityKind() *schema.Kind { return partKind }

var thingKind, partKind *schema.Kind

func init() {
	thingKind = &schema.Kind{Name: "thing", Plural: "things", Prefix: "th", Decode: func(r *schema.Record) (schema.Object, error) {
		t := &thing{Meta: r.Meta}
		return t, json.Unmarshal(r.Spec, &t.Spec)
	}}
	partKind = &schema.Kind{Name: "part", Plural: "parts", Prefix: "pt", Decode: func(r *schema.Record) (schema.Object, error) {
		p := &part{thing{Meta: r.Meta}}
		return p, json.Unmarshal(r.Spec, &p.Spec)
	}}
}

// store is a history of things and parts.
type store struct{ *history.Reader }

func newStore() store { return store{history.New()} }

func (s store) put(kind string, id schema.ID, spec thingSpec) {
	b, _ := json.Marshal(spec)
	s.Put(kind, id, b)
}

func (s store) setDown(down bool) {
	if down {
		s.Fail(errs.New(errs.Unavailable, "down"))
	} else {
		s.Fail(nil)
	}
}
