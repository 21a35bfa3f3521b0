// Package lang reads the type language of api/<domain>/*.yml: constants, enums,
// components (structs of fields) and kinds of entities. schemagen, rpcgen and
// the configuration generator share it.
//
// A file is strict YAML:
//
//	domain: sandbox
//	doc: What the domain is.
//	constants:
//	  max_hosts: {type: int, value: 16, doc: ..., export: [pkg/hosts]}
//	enums:
//	  probe_kind: {doc: ..., values: {tcp: doc, http: doc}}
//	components:
//	  probe: {doc: ..., fields: {kind: {type: enum, enum: probe_kind, default: tcp, doc: ...}}}
//	kinds:
//	  sandbox: {plural: sandboxes, prefix: sb, scope: project, doc: ..., spec: {fields}, status: {fields}, columns: [...],
//	    indexes: {queue: [status.state, -spec.priority, spec.not_before]}}
//
// A kind's indexes list its entities in the order of several attributes; those
// with a minus have the greatest value first.
//
// A field is a mapping with the keys type, of, enum, component, kind,
// required, default, min, max, pattern, index, unique, on_delete, unit, doc.
// Types are string, int, bool, float, time, duration, bytes, enum, ref,
// component, secret, list, map and, in messages of RPC, record; list and map name their element type in of,
// keys of maps are strings. min and max bound the value of numbers and
// durations, and the length of strings, bytes, lists and maps. Names of enums
// and components may be qualified with another domain ("sandbox.resources").
//
// A constant is a limit or default with a name. default, min, max and pattern
// refer to it as $max_hosts or $sandbox.max_hosts; Go code of api/<domain> and of
// the packages in export gets it as a constant.
//
// Unknown keys are errors with file, line and a suggestion. Numbers of fields
// are not written in the file; Lock assigns them and keeps them forever.
package lang

import "fmt"

// Type is the type of a field.
type Type string

// Types of the language.
const (
	String    Type = "string"
	Int       Type = "int"
	Bool      Type = "bool"
	Float     Type = "float"
	Time      Type = "time"
	Duration  Type = "duration"
	Bytes     Type = "bytes"
	EnumType  Type = "enum"
	Ref       Type = "ref"
	Struct    Type = "component"
	Secret    Type = "secret"
	List      Type = "list"
	Map       Type = "map"
	Record    Type = "record" // a schema.Record; only in the messages of an rpc.yml
	untypedOf Type = ""
)

var allTypes = []string{"string", "int", "bool", "float", "time", "duration", "bytes", "enum", "ref", "component", "secret", "list", "map", "record"}

// Pos is a position in a file.
type Pos struct {
	File string
	Line int
}

func (p Pos) String() string { return fmt.Sprintf("%s:%d", p.File, p.Line) }

// File is one parsed schema file.
type File struct {
	Path       string
	Domain     string
	Doc        string
	Constants  []*Constant
	Enums      []*Enum
	Components []*Component
	Kinds      []*Kind
}

// Enum is a closed set of strings.
type Enum struct {
	Domain string
	Name   string
	Doc    string
	Values []EnumValue
	Pos    Pos
}

// EnumValue is one value of an enum.
type EnumValue struct {
	Name string
	Doc  string
}

// Component is a struct of fields.
type Component struct {
	Domain string
	Name   string
	Doc    string
	Fields []*Field
	Pos    Pos
}

// Kind is a kind of entity.
type Kind struct {
	Domain       string
	Name         string
	Plural       string
	Prefix       string
	Scope        string // project, cluster
	Short        []string
	Doc          string
	NameRequired bool
	Spec         []*Field
	Status       []*Field
	Columns      []*Column
	Indexes      []*Composite
	Pos          Pos
}

// Composite is an index over several fields.
type Composite struct {
	Name  string
	Parts []Part
	Pos   Pos
}

// Part is one field of a composite index.
type Part struct {
	Path  string // spec.x, status.x
	Field *Field
	Desc  bool
}

// Column is a column of a kind's table in the CLI.
type Column struct {
	Title  string
	Path   string // spec.x, status.x.y, meta.created_at
	Format string // "", age, bytes, millis
	Wide   bool
	Pos    Pos
}

// Index says how a field is indexed.
type Index string

// Ways to index. All of them allow equality.
const (
	NoIndex     Index = ""
	IndexEqual  Index = "equal"
	IndexPrefix Index = "prefix"
	IndexRange  Index = "range"
)

// Unique is the scope within which a field's value may exist once.
type Unique string

// Scopes of uniqueness.
const (
	NotUnique     Unique = ""
	UniqueProject Unique = "project" // in the project; for cluster kinds the same as global
	UniqueGlobal  Unique = "global"
)

// Field is one field of a component, message, spec or status.
type Field struct {
	Name   string
	Number int  // CBOR key; 0 until Lock.Struct has assigned it
	Type   Type // of the field
	Elem   Type // of the elements of a list or map

	Enum      string // of enum fields or elements; may be "domain.name"
	Component string // of component fields or elements; may be "domain.name"
	Kind      string // of ref fields or elements

	Required bool
	Default  any // nil: none; string, int64, float64, bool, time.Duration
	Min, Max any // nil: unbounded; int64 (also for lengths), float64, time.Duration
	Pattern  string
	Index    Index
	Unique   Unique
	OnDelete string // restrict, cascade, clear
	Unit     string
	Doc      string
	Pos      Pos
}

// Base returns the type of the elements of a list or map, and the type of the
// field itself otherwise.
func (f *Field) Base() Type {
	if f.Type == List || f.Type == Map {
		return f.Elem
	}
	return f.Type
}

// Describe renders the type for documentation and for the lock:
// "list of component port", "ref app", "string".
func (f *Field) Describe() string {
	s := string(f.Type)
	if f.Type == List || f.Type == Map {
		s += " of " + string(f.Elem)
	}
	switch f.Base() {
	case EnumType:
		s += " " + f.Enum
	case Struct:
		s += " " + f.Component
	case Ref:
		s += " " + f.Kind
	}
	return s
}
