// Package entity is the store of entities: the interface every backend
// implements, and typed helpers over it. It knows no domain and links no
// database. The backends are entity/pgstore on PostgreSQL, entity/sqlitestore on
// SQLite and entity/etcdstore on etcd; entity/storetest is the conformance suite that every backend passes.
//
// All errors are of package errs. NotFound means that the store looked and the
// entity does not exist; Unavailable means that it could not look. A write whose outcome is not known is Unavailable with detail
// "outcome"="unknown"; it can be repeated with the same RequestID.
package entity

import (
	"context"
	"time"

	"miren.dev/runtime/pkg/schema"
)

// OpType is the kind of one operation of a transaction.
type OpType uint8

// Operations. Every one is conditional.
const (
	OpCreate       OpType = iota + 1 // Creates Record; the id must be absent. AlreadyExists otherwise.
	OpUpdateSpec                     // Record.Name, Labels, Lease, Spec replace the old ones if SpecRevision == If.
	OpUpdateStatus                   // Record.Status replaces the old one if StatusRevision == If.
	OpDelete                         // Deletes if Revision == If. Cascades, and clears references, as the schema says.
	OpCheck                          // Changes nothing; fails unless Revision == If (If 0: unless absent).
	OpAdd                            // Adds to an integer attribute, within bounds, whatever the revision is.
)

// Op is one operation of a transaction. Kind and ID of Record name the entity.
type Op struct {
	Type   OpType
	Record schema.Record
	If     schema.Revision
	Add    *Addition // for OpAdd
}

// Addition adds to an integer attribute of spec or status, for counters and
// quotas that many writers change at once. It is not conditional on a revision,
// so it never conflicts with another addition; its condition is that the sum is
// within the bounds.
type Addition struct {
	Attr     string // "status.used"; an absent one counts as its default, else as 0
	Delta    int64
	Min, Max *int64 // bounds of the sum; nil: unbounded
}

// TxnRequest is a set of operations that are applied together or not at all.
//
// A large deletion is an exception: when more than about 1,000 other entities go
// with it or have a reference cleared, those changes come first, in transactions
// of their own, with other writes in between. Referrers go before what they
// refer to, so no reference ever leads nowhere. The conditions of the request
// are checked each time, and the operations themselves are applied together at
// the end. If the request fails in between, or the server is killed, the changes
// so far stay, and the entity exists and can be deleted again. A reference that
// restricts the deletion refuses it before anything changes.
//
// An entity may appear twice only as one spec and one status update, or with
// additions to several attributes.
type TxnRequest struct {
	// RequestID, if set, makes the transaction idempotent: the outcome of a
	// committed transaction with the same id is returned instead of a second
	// application, as long as the store's change log has the first. That is
	// much longer than clients repeat; an hour with fewer than 500,000 later
	// transactions. Clients of entity/remote always send one.
	RequestID string
	Ops       []Op
}

// TxnResult is the outcome of a committed transaction.
type TxnResult struct {
	Revision schema.Revision
	// Records are the entities after the transaction, one per Op (for a
	// delete the last object, for a check the checked one or a zero Record). The
	// result of a repeated transaction has zero Records for its checks.
	Records []schema.Record
}

// IndexOp compares an indexed attribute.
type IndexOp uint8

// Comparisons of an index.
const (
	IndexEq     IndexOp = iota + 1 // equal
	IndexPrefix                    // starts with (string attributes)
	IndexRange                     // >= Value and < Upper (nil: unbounded)
)

// IndexMatch selects by an indexed attribute ("spec.app").
type IndexMatch struct {
	Attr         string
	Op           IndexOp
	Value, Upper []byte // made by schema.EncodeIndex*
}

// Order lists the entities by a composite index of their kind, in the order of
// its parts. It selects those whose first parts equal Equal, and whose next
// part is >= Lower and < Upper. A missing value of an entity is less than every
// other value.
type Order struct {
	Index        string   // the name of the index in the schema
	Equal        [][]byte // made by schema.EncodeIndex*; nil: the entity has no value
	Lower, Upper []byte   // made by schema.EncodeIndex*; nil: unbounded
}

// Query selects entities of one kind. All conditions must hold.
type Query struct {
	Kind    string
	Project schema.ID // empty: all projects
	Name    string
	Labels  map[string]string
	Index   []IndexMatch
	Order   *Order // nil: by id
	Limit   int    // most entities of one page; 0: all, at most 10,000
	Cursor  string // of the previous page; empty: the first page
}

// Page is one page of a List. Every page of one listing shows the store at
// the same revision.
type Page struct {
	Records []schema.Record // ordered by id, or as Query.Order says and then by id
	Cursor  string          // empty on the last page
	Token   schema.Token    // a watch from here misses no change
}

// EventType is the type of a watch event.
type EventType uint8

// Types of watch events.
const (
	EventPut      EventType = iota + 1 // created or changed; Record is the new state
	EventDelete                        // Record is the last object, its Revision that of the deletion
	EventBookmark                      // no change; every event up to Token has been sent
	EventLeave                         // changed so that WatchQuery.Select no longer selects it; Record is the new state
)

// Event is one change, or a bookmark.
type Event struct {
	Type   EventType
	Record schema.Record
	Token  schema.Token // position to resume after this event
}

// Selector selects the entities that have a value in an indexed attribute or a
// label.
type Selector struct {
	Attr  string // "spec.app", or the result of LabelSelector
	Value []byte // made by schema.EncodeIndex*
}

// LabelPrefix precedes the name of a label where an attribute is expected.
const LabelPrefix = "meta.labels."

// LabelSelector selects the entities with a label.
func LabelSelector(name, value string) *Selector {
	return &Selector{Attr: LabelPrefix + name, Value: []byte(value)}
}

// MaxWatchIDs is the most ids that one watch can name.
const MaxWatchIDs = 1000

// WatchQuery selects the changes to follow. All conditions must hold. A watch
// costs nothing while no selected entity changes.
type WatchQuery struct {
	Kinds   []string     // empty: all kinds
	IDs     []schema.ID  // empty: all entities
	Project schema.ID    // empty: all projects
	Select  *Selector    // nil: all entities
	From    schema.Token // events after this position; the zero Token: from now
	// Bookmarks asks for a bookmark at least this often while no change is
	// sent; 0 asks only for the first, which is sent as soon as the watch has
	// caught up.
	Bookmarks time.Duration
}

// Watch is a running watch: ordered, gap-free, resumable.
type Watch interface {
	// Next blocks until there is at least one event. Its errors: Compacted if
	// the position is gone (list again), ResourceExhausted if this watcher was
	// too slow (resume from the last Token), Unavailable if the store cannot be
	// reached (resume), Canceled after Close or when ctx ends. It is for one
	// goroutine. The memory that records refer to (labels, bytes) is shared
	// with other watchers: do not modify it.
	Next(ctx context.Context) ([]Event, error)
	Close()
}

// Lease is a promise to be alive. The store deletes the entities created with
// its id when it lapses.
type Lease struct {
	ID        schema.LeaseID
	TTL       time.Duration
	ExpiresAt time.Time // by the database's clock
}

// Reader reads entities.
type Reader interface {
	// Get returns one entity. Errors: NotFound, Unavailable.
	Get(ctx context.Context, kind string, id schema.ID) (schema.Record, error)
	List(ctx context.Context, q Query) (Page, error)
	Watch(ctx context.Context, q WatchQuery) (Watch, error)
}

// Store is an entity store. It is safe for concurrent use.
type Store interface {
	Reader
	// Txn applies ops atomically. On a failed condition it returns Conflict
	// (revision moved), NotFound, AlreadyExists (id, name or unique value
	// taken), FailedPrecondition (reference missing or restricting, lease
	// lapsed), ResourceExhausted (a sum would be out of bounds; details "value"
	// and "limit") or InvalidArgument (schema), with details "kind", "id", "attr".
	Txn(ctx context.Context, req TxnRequest) (TxnResult, error)

	Grant(ctx context.Context, ttl time.Duration) (Lease, error)
	// KeepAlive renews; NotFound means that the lease lapsed.
	KeepAlive(ctx context.Context, id schema.LeaseID) (Lease, error)
	// Revoke ends a lease and deletes its entities.
	Revoke(ctx context.Context, id schema.LeaseID) error
}
