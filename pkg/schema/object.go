// Package schema is the type language shared by the entity store and the RPC:
// what an entity is, how its kinds are described, and the CBOR codec.
//
// An entity has a Meta, a spec (what is wanted) and a status (what is). Kinds
// are declared in api/<domain>/schema.yml; schemagen generates a Go struct and
// a Kind descriptor for each. The store and RPC move entities as Records: the
// same thing with spec and status encoded.
package schema

import (
	"time"
)

// ID names an entity. It is opaque, never reused, at most 64 bytes of
// [a-z0-9-], and starts with the kind's prefix ("sb-...").
type ID string

// Revision is a position in the store's single, dense, commit-ordered
// sequence of transactions. Zero means "none".
type Revision int64

// Token is a position in the history of one epoch of a store. A restore or a
// failover that may have lost writes starts a new epoch; the store answers a
// token of an old epoch with Compacted.
type Token struct {
	Epoch    string   `cbor:"1,keyasint" json:"epoch"`
	Revision Revision `cbor:"2,keyasint" json:"revision"`
}

// LeaseID names a store lease. Empty means "none".
type LeaseID string

// Meta holds the fields that every entity has besides spec and status. The
// store sets all of them except Name, Project, Labels and Lease.
type Meta struct {
	ID      ID                `cbor:"1,keyasint" json:"id"`
	Project ID                `cbor:"2,keyasint,omitempty" json:"project,omitempty"` // empty for kinds of cluster scope
	Name    string            `cbor:"3,keyasint,omitempty" json:"name,omitempty"`    // unique within kind and project when not empty
	Labels  map[string]string `cbor:"4,keyasint,omitempty" json:"labels,omitempty"`
	Lease   LeaseID           `cbor:"5,keyasint,omitempty" json:"lease,omitempty"` // the store deletes the entity when this lease lapses

	Revision       Revision  `cbor:"6,keyasint,omitempty" json:"revision"`        // last change of the entity
	SpecRevision   Revision  `cbor:"7,keyasint,omitempty" json:"spec_revision"`   // last change of name, labels, lease or spec
	StatusRevision Revision  `cbor:"8,keyasint,omitempty" json:"status_revision"` // last change of status
	CreateRevision Revision  `cbor:"9,keyasint,omitempty" json:"create_revision"` // also the fencing token of a leased entity
	CreatedAt      time.Time `cbor:"10,keyasint,omitempty" json:"created_at"`
	UpdatedAt      time.Time `cbor:"11,keyasint,omitempty" json:"updated_at"`
}

// GetMeta returns m itself, so that a generated entity, which embeds Meta,
// implements Object.
func (m *Meta) GetMeta() *Meta { return m }

// Object is implemented by every generated entity type (as *T).
type Object interface {
	EntityKind() *Kind
	GetMeta() *Meta
	// SpecPtr and StatusPtr return pointers to the typed spec and status.
	SpecPtr() any
	StatusPtr() any
}

// Record is an entity as the store and the wire hold it.
type Record struct {
	Meta   `cbor:"1,keyasint"`
	Kind   string `cbor:"2,keyasint"`
	Spec   []byte `cbor:"3,keyasint,omitempty"` // CBOR of the kind's spec
	Status []byte `cbor:"4,keyasint,omitempty"` // CBOR of the kind's status
}

// Scope says whether a project owns the entities of a kind.
type Scope string

// Scopes.
const (
	ScopeProject Scope = "project" // Meta.Project is required
	ScopeCluster Scope = "cluster" // Meta.Project is empty
)

// OnDelete says what the deletion of a referenced entity does to the referrer.
type OnDelete string

// Effects of the deletion of a reference's target.
const (
	Restrict OnDelete = "restrict" // the deletion is refused
	Cascade  OnDelete = "cascade"  // the referrer is deleted too
	Clear    OnDelete = "clear"    // the reference is removed from the referrer
)

// IndexEntry is one indexed value of an entity. Values order bytewise the way
// the attribute's type orders (see EncodeIndex*).
type IndexEntry struct {
	Attr  string
	Value []byte
}

// UniqueEntry is a value that at most one entity of the kind may have (within
// the project for kinds of ScopeProject, unless Global).
type UniqueEntry struct {
	Attr   string
	Value  []byte
	Global bool
}

// RefEntry is a reference to another entity that must exist when written.
type RefEntry struct {
	Attr     string
	Kind     string
	ID       ID
	OnDelete OnDelete
}

// Extracted holds all values of a record that the store indexes or enforces.
type Extracted struct {
	Index  []IndexEntry
	Unique []UniqueEntry
	Refs   []RefEntry
}

// Column is one column of a kind's table in the CLI.
type Column struct {
	Title string
	// Value renders the cell; now is the time for ages.
	Value func(o Object, now time.Time) string
	Wide  bool // shown only with --wide
}

// Kind describes one kind of entity. It is generated; everything in it is
// safe for concurrent use.
type Kind struct {
	Name   string // "sandbox_pool"
	Plural string // "sandbox_pools"
	Prefix string // prefix of ids: "pool"
	Domain string // "sandbox"
	Doc    string
	Scope  Scope
	Short  []string // aliases the CLI accepts
	// NameRequired says that Meta.Name must not be empty.
	NameRequired bool
	// Attrs describes every attribute of spec and status.
	Attrs []Attr
	// Indexes are the composite ones.
	Indexes []*Index

	// New returns an empty object with defaults applied.
	New func() Object
	// Decode fills a new object from a record; unknown fields are dropped,
	// missing ones get their defaults.
	Decode func(*Record) (Object, error)
	// Encode validates o and renders it. Errors have class invalid_argument
	// and name the attribute.
	Encode func(Object) (*Record, error)
	// Extract decodes the values that the store needs of a record and validates
	// the record.
	Extract func(*Record) (Extracted, error)
	// Columns of the CLI table, after NAME and ID.
	Columns []Column
}
