package main

import (
	"miren.dev/runtime/pkg/schema"
)

// value is an entity that holds only bytes, like a value of etcd.
type value struct {
	schema.Meta
	Spec   struct{}
	Status valueStatus
}

type valueStatus struct {
	Data []byte `cbor:"1,keyasint,omitempty"`
}

func (*value) EntityKind() *schema.Kind         { return valueKind }
func (v *value) SpecPtr() any                   { return &v.Spec }
func (v *value) StatusPtr() any                 { return &v.Status }
func (*value) ValidateFields(*schema.Validator) {}
func (*value) Extract(*schema.Extracted)        {}

var valueKind *schema.Kind

func init() { // the functions refer to the kind
	valueKind = &schema.Kind{
		Name: "value", Plural: "values", Prefix: "val", Domain: "bench", Scope: schema.ScopeCluster,
		New:    func() schema.Object { return new(value) },
		Encode: schema.EncodeObject,
		Decode: func(r *schema.Record) (schema.Object, error) {
			v := new(value)
			return v, schema.DecodeRecord(r, v)
		},
		Extract: func(r *schema.Record) (schema.Extracted, error) { return schema.ExtractRecord(r, new(value)) },
	}
}
