// Package storetest is the conformance suite of entity.Store: every backend
// passes it. It has kinds of its own, written by hand, that use every feature of
// kinds:
//
//	project  cluster scope; what Meta.Project names
//	node     cluster scope
//	thing    project scope: references with each policy, unique values in the
//	         project and in the store, indexed attributes in spec and status
package storetest

import (
	"encoding/binary"

	"github.com/fxamacker/cbor/v2"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// Kinds returns the kinds that the suite works with.
func Kinds() []*schema.Kind { return []*schema.Kind{ProjectKind, NodeKind, ThingKind} }

// Project is a tenant.
type Project struct {
	schema.Meta
	Spec   struct{}
	Status struct{}
}

// Node is a machine.
type Node struct {
	schema.Meta
	Spec   NodeSpec
	Status struct{}
}

// NodeSpec is the spec of a node.
type NodeSpec struct {
	Arch string `cbor:"1,keyasint"`
}

// Thing has every feature that an entity can have.
type Thing struct {
	schema.Meta
	Spec   ThingSpec
	Status ThingStatus
}

// ThingSpec is the spec of a thing.
type ThingSpec struct {
	Color  string   `cbor:"1,keyasint,omitempty"` // required, indexed
	Size   int64    `cbor:"2,keyasint,omitempty"` // indexed
	Tags   []string `cbor:"3,keyasint,omitempty"` // indexed, each
	Serial string   `cbor:"4,keyasint,omitempty"` // unique in the project
	Global string   `cbor:"5,keyasint,omitempty"` // unique in the store

	Owner   schema.ID   `cbor:"6,keyasint,omitempty"`  // a thing; its deletion cascades
	Needs   schema.ID   `cbor:"7,keyasint,omitempty"`  // a thing; restricts
	Likes   schema.ID   `cbor:"8,keyasint,omitempty"`  // a thing; cleared
	Weight  []byte      `cbor:"9,keyasint,omitempty"`  // makes the thing large
	Friends []schema.ID `cbor:"10,keyasint,omitempty"` // things; cleared
}

// ThingStatus is the status of a thing.
type ThingStatus struct {
	Phase string    `cbor:"1,keyasint,omitempty"` // indexed
	Node  schema.ID `cbor:"2,keyasint,omitempty"` // a node; restricts
	Count int64     `cbor:"3,keyasint,omitempty"`
	Seen  schema.ID `cbor:"4,keyasint,omitempty"` // a thing; cleared
}

// The methods of schema.Object.
func (*Project) EntityKind() *schema.Kind { return ProjectKind }
func (o *Project) SpecPtr() any           { return &o.Spec }
func (o *Project) StatusPtr() any         { return &o.Status }
func (*Node) EntityKind() *schema.Kind    { return NodeKind }
func (o *Node) SpecPtr() any              { return &o.Spec }
func (o *Node) StatusPtr() any            { return &o.Status }
func (*Thing) EntityKind() *schema.Kind   { return ThingKind }
func (o *Thing) SpecPtr() any             { return &o.Spec }
func (o *Thing) StatusPtr() any           { return &o.Status }

// The kinds.
var (
	ProjectKind, NodeKind, ThingKind *schema.Kind
)

func init() { // the constructors refer to the kinds
	ProjectKind = kind("project", "proj", schema.ScopeCluster, func() schema.Object { return new(Project) },
		func(schema.Object) (schema.Extracted, error) { return schema.Extracted{}, nil })
	NodeKind = kind("node", "node", schema.ScopeCluster, func() schema.Object { return new(Node) },
		func(schema.Object) (schema.Extracted, error) { return schema.Extracted{}, nil })
	ThingKind = kind("thing", "thing", schema.ScopeProject, func() schema.Object { return new(Thing) }, extractThing)
	ThingKind.Indexes = []*schema.Index{thingQueue}
	ThingKind.Attrs = []schema.Attr{
		{Path: "spec.color", Number: 1, Type: "string", Required: true, Indexed: true},
		{Path: "spec.size", Number: 2, Type: "int", Indexed: true},
		{Path: "spec.owner", Number: 6, Type: "ref thing"},
		{Path: "spec.needs", Number: 7, Type: "ref thing"},
		{Path: "spec.likes", Number: 8, Type: "ref thing"},
		{Path: "spec.friends", Number: 10, Type: "list of ref thing"},
		{Path: "status.node", Number: 2, Type: "ref node"},
		{Path: "status.count", Number: 3, Type: "int"},
		{Path: "status.seen", Number: 4, Type: "ref thing"},
	}
}

// thingQueue orders things by color, then the biggest first, then by serial.
var thingQueue = &schema.Index{Name: "queue", Parts: []schema.IndexPart{{Attr: "spec.color"}, {Attr: "spec.size", Desc: true}, {Attr: "spec.serial"}}}

func extractThing(o schema.Object) (schema.Extracted, error) {
	t := o.(*Thing)
	var x schema.Extracted
	if t.Spec.Color == "" {
		return x, errs.New(errs.InvalidArgument, "spec.color is required").With("attr", "spec.color")
	}
	x.Index = append(x.Index,
		schema.IndexEntry{Attr: "spec.color", Value: []byte(t.Spec.Color)},
		schema.IndexEntry{Attr: "spec.size", Value: Int(t.Spec.Size)},
	)
	for _, tag := range t.Spec.Tags {
		x.Index = append(x.Index, schema.IndexEntry{Attr: "spec.tags", Value: []byte(tag)})
	}
	if t.Status.Phase != "" {
		x.Index = append(x.Index, schema.IndexEntry{Attr: "status.phase", Value: []byte(t.Status.Phase)})
	}
	if t.Spec.Serial != "" {
		x.Unique = append(x.Unique, schema.UniqueEntry{Attr: "spec.serial", Value: []byte(t.Spec.Serial)})
	}
	if t.Spec.Global != "" {
		x.Unique = append(x.Unique, schema.UniqueEntry{Attr: "spec.global", Value: []byte(t.Spec.Global), Global: true})
	}
	queue := [][]byte{[]byte(t.Spec.Color), Int(t.Spec.Size), nil}
	if t.Spec.Serial != "" {
		queue[2] = []byte(t.Spec.Serial)
	}
	x.AddComposite(thingQueue, queue...)
	ref := func(attr, kind string, id schema.ID, policy schema.OnDelete) {
		if id != "" {
			x.Refs = append(x.Refs, schema.RefEntry{Attr: attr, Kind: kind, ID: id, OnDelete: policy})
		}
	}
	ref("spec.owner", "thing", t.Spec.Owner, schema.Cascade)
	ref("spec.needs", "thing", t.Spec.Needs, schema.Restrict)
	ref("spec.likes", "thing", t.Spec.Likes, schema.Clear)
	for _, id := range t.Spec.Friends {
		ref("spec.friends", "thing", id, schema.Clear)
	}
	ref("status.node", "node", t.Status.Node, schema.Restrict)
	ref("status.seen", "thing", t.Status.Seen, schema.Clear)
	return x, nil
}

// Int encodes a value of an integer attribute so that values order bytewise.
func Int(n int64) []byte {
	return binary.BigEndian.AppendUint64(nil, uint64(n)^(1<<63))
}

func kind(name, prefix string, scope schema.Scope, fresh func() schema.Object, extract func(schema.Object) (schema.Extracted, error)) *schema.Kind {
	k := &schema.Kind{Name: name, Plural: name + "s", Prefix: prefix, Domain: "test", Scope: scope, New: fresh}
	k.Decode = func(r *schema.Record) (schema.Object, error) {
		o := fresh()
		*o.GetMeta() = r.Meta
		for _, part := range []struct {
			b    []byte
			into any
		}{{r.Spec, o.SpecPtr()}, {r.Status, o.StatusPtr()}} {
			if len(part.b) == 0 {
				continue
			}
			if err := cbor.Unmarshal(part.b, part.into); err != nil {
				return nil, errs.New(errs.InvalidArgument, "decode %s: %w", name, err)
			}
		}
		return o, nil
	}
	k.Extract = func(r *schema.Record) (schema.Extracted, error) {
		o, err := k.Decode(r)
		if err != nil {
			return schema.Extracted{}, err
		}
		return extract(o)
	}
	k.Encode = func(o schema.Object) (*schema.Record, error) {
		if _, err := extract(o); err != nil {
			return nil, err
		}
		r := &schema.Record{Meta: *o.GetMeta(), Kind: name}
		var err error
		if r.Spec, err = cbor.Marshal(o.SpecPtr()); err != nil {
			return nil, err
		}
		r.Status, err = cbor.Marshal(o.StatusPtr())
		return r, err
	}
	return k
}
