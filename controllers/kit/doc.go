// Package kit runs controllers. A controller makes the system match the
// entities of one kind: changes put keys (entity ids) into a queue, workers
// take them out, read the entity again and act.
//
// The package guarantees to a controller:
//
//   - every entity of the kind is reconciled once after the start, and again
//     after every change of it or of what its Watches map to it; changes are
//     coalesced, never dropped;
//   - one key is reconciled by one worker at a time; a key that changes while it
//     is worked on runs again afterwards;
//   - an error is retried per key with exponential, jittered, capped backoff;
//     Terminal errors are not, until the next change;
//   - a deletion reaches Deleted with the last object, and is retried until
//     Deleted succeeds. Deletions that happen while the process is down are not
//     seen: a controller with external resources also sweeps by ownership when
//     it starts.
//
// Changes come from an informer set (entity/informer), which the process may
// share. A controller also declares what it reads and writes (Access): a field of
// an entity has one owner.
//
// Reconcile reads the current state, compares and acts; it does not know which
// event woke it. To wait, it returns a time; to retry, an error; to give up,
// Terminal(err).
//
// Locks: no lock of this package is held while another is taken. Filters and
// mapping functions run under the informers' delivery lock.
package kit
