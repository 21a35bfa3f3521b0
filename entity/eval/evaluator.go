// Package eval decides about the transactions of an entity store, whatever its
// database is: it imports none.
//
// A store has one writer. It collects transactions from its Queue, loads what
// their decisions depend on into a View, and lets Outcome.Evaluate decide one
// after the other in memory, each on the state that the accepted ones before it
// leave. The writer then makes the View's net changes and the Outcome's log rows
// durable, and answers. Each accepted transaction gets the next revision; a
// rejected one gets none and affects no other.
//
// A deletion follows references to what it deletes (delete.go). A large one is
// applied in several transactions; chunk.go describes the states in between.
package eval

import (
	"log/slog"
	"time"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// Evaluator decides about transactions. It is safe for concurrent use.
type Evaluator struct {
	Kinds      map[string]*schema.Kind
	logger     *slog.Logger
	maxCascade int
	maxBytes   int // of the changes of a deletion
	attempt    time.Duration
}

// Config of an Evaluator.
type Config struct {
	Kinds  []*schema.Kind
	Logger *slog.Logger
	// MaxCascade is how many entities a deletion changes in one transaction,
	// besides those that the transaction names.
	MaxCascade int
	// MaxCascadeBytes bounds, like MaxCascade, the size of these entities; 0: 16 MiB.
	MaxCascadeBytes int
	// Attempt is how long one database transaction may last. A deletion that needs
	// a quarter of it is applied in parts.
	Attempt time.Duration
}

// New returns an Evaluator. InvalidArgument: a kind is registered twice.
func New(cfg Config) (*Evaluator, error) {
	e := &Evaluator{Kinds: map[string]*schema.Kind{}, logger: cfg.Logger, maxCascade: cfg.MaxCascade, maxBytes: cfg.MaxCascadeBytes, attempt: cfg.Attempt}
	if e.maxBytes == 0 {
		e.maxBytes = maxCascadeBytes
	}
	for _, k := range cfg.Kinds {
		if _, twice := e.Kinds[k.Name]; twice {
			return nil, errs.New(errs.InvalidArgument, "kind %s is registered twice", k.Name)
		}
		e.Kinds[k.Name] = k
	}
	return e, nil
}

// NewView returns an empty view.
func (e *Evaluator) NewView() *View { return newView(e.maxCascade) }
