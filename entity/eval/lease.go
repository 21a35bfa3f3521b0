package eval

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// Bounds of a lease's time to live.
const (
	minTTL = 100 * time.Millisecond
	maxTTL = 24 * time.Hour
)

// LeaseGap: if no server has checked for lapsed leases for this long, the
// database or every server was away, and holders may have been unable to renew.
// Every lease then gets its full time again.
const LeaseGap = 5 * time.Second

// CheckTTL returns an error of class InvalidArgument for a time to live that is
// not allowed.
func CheckTTL(ttl time.Duration) error {
	if ttl < minTTL || ttl > maxTTL {
		return errs.New(errs.InvalidArgument, "a lease of %s; %s to %s are allowed", ttl, minTTL, maxTTL)
	}
	return nil
}

// ErrLapsed says that a lease does not exist any more.
func ErrLapsed(id schema.LeaseID) *errs.Error {
	return errs.New(errs.NotFound, "lease %s does not exist or has lapsed", id).With("lease", string(id))
}

// Expirer ends lapsed leases. All fields are required. Servers may race: the
// batch that ends a lease checks again, under the lock of its row, that it has
// lapsed.
type Expirer struct {
	Queue    *Queue
	Logger   *slog.Logger
	Interval time.Duration // between two checks for lapsed leases
	// Lapsed returns lapsed leases with ids after this one, in their order.
	Lapsed func(ctx context.Context, after string, limit int) ([]string, error)
	Ended  func() // called when a lease has ended

	after string // ids up to here were checked in this round

	mu     sync.Mutex
	ending map[string]bool // leases whose end is under way
	held   map[string]bool // leases that cannot end, since other entities need theirs: logged once
	wg     sync.WaitGroup
}

const (
	// lapsedPage is how many lapsed leases one turn checks, so that those that
	// cannot end leave turns for the others.
	lapsedPage = 100
	maxEnding  = 64 // under way at a time
)

// Run ends lapsed leases until ctx ends.
func (e *Expirer) Run(ctx context.Context) {
	e.ending, e.held = map[string]bool{}, map[string]bool{}
	defer e.wg.Wait()
	tick := time.NewTicker(e.Interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		// If the database is away, the next tick is soon enough.
		if err := e.turn(ctx); err != nil && ctx.Err() == nil && !errs.Is(err, errs.Unavailable) {
			e.Logger.Error("cannot end lapsed leases", "error", err)
		}
	}
}

// turn begins to end the next lapsed leases.
func (e *Expirer) turn(ctx context.Context) error {
	lapsed, err := e.Lapsed(ctx, e.after, lapsedPage)
	if err != nil {
		return err
	}
	for _, id := range lapsed {
		e.mu.Lock()
		if e.ending[id] {
			e.mu.Unlock()
			continue
		}
		if len(e.ending) >= maxEnding {
			e.mu.Unlock()
			return nil // the remaining leases get their turn again
		}
		e.ending[id] = true
		e.mu.Unlock()
		e.after = id
		e.wg.Go(func() { e.end(ctx, id) })
	}
	if len(lapsed) < lapsedPage {
		e.after = ""
	}
	return nil
}

// end ends one lease.
func (e *Expirer) end(ctx context.Context, id string) {
	_, err := e.Queue.Submit(ctx, &Txn{EndLease: schema.LeaseID(id), OnlyLapsed: true})
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.ending, id)
	switch {
	case err == nil:
		delete(e.held, id)
		e.Ended()
		e.Logger.Info("lease lapsed", "lease", id)
	case errs.Is(err, errs.NotFound): // renewed, or ended by another server
		delete(e.held, id)
	case !e.held[id] && ctx.Err() == nil:
		if len(e.held) >= maxHeld {
			clear(e.held)
		}
		e.held[id] = errs.Is(err, errs.FailedPrecondition)
		e.Logger.Warn("cannot end a lapsed lease", "lease", id, "error", err)
	}
}

// maxHeld bounds the memory of leases that cannot end.
const maxHeld = 10_000
