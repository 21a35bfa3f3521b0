package sandbox

import (
	"reflect"
	"sync"
	"time"

	"miren.dev/runtime/api/sandbox"
)

// work is a kind of work that takes long.
type work int

const (
	setup work = iota
	down
	probing
	checking
	kinds
)

// setups, downs, probes and checks (of liveness) bound the work of each kind that runs
// at a time. The other workers are for quick reconciliations. A set-up costs CPU and
// disk; a stop mostly waits for the processes in the sandbox, a probe or check for its
// answer.
const (
	setups  = 16
	downs   = 96
	probes  = 64
	checks  = 64
	workers = setups + downs + probes + checks + 16
)

var limits = [kinds]int{setup: setups, down: downs, probing: probes, checking: checks}

// busyWait is the time until a key is reconciled again whose kind of work is at its limit.
const busyWait = 100 * time.Millisecond

// workTracker counts the work of each kind that runs, and remembers facts about each sandbox that are not in its
// entity. The zero value is empty; a new server begins with one.
type workTracker struct {
	mu         sync.Mutex
	running    [kinds]int
	setupSince map[string]time.Time       // when the first set-up began
	reportedAt map[string]time.Time       // when a message was last recorded
	probeAt    map[string]time.Time       // time of the next probe
	misses     map[string]int             // probes in a row that failed, of a ready sandbox
	localSince map[string]time.Time       // since when its probe's port is one of a loopback address alone
	checkAt    map[string]time.Time       // time of the next liveness check
	dead       map[string]int             // liveness checks in a row that failed
	claimed    map[string]bool            // whether its node gave it to its claim
	awake      map[string]time.Time       // since when it runs, as far as this server knows
	egress     map[string]*sandbox.Egress // network policy that its node applies
}

// begin counts one more piece of work of kind w, if the limit allows it.
// release uncounts it, and may be called more than once.
func (t *workTracker) begin(w work) (release func(), ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.running[w] >= limits[w] {
		return nil, false
	}
	t.running[w]++
	return sync.OnceFunc(func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.running[w]--
	}), true
}

// forget removes the facts about a sandbox.
func (t *workTracker) forget(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.setupSince, id)
	delete(t.reportedAt, id)
	delete(t.probeAt, id)
	delete(t.misses, id)
	delete(t.localSince, id)
	delete(t.checkAt, id)
	delete(t.dead, id)
	delete(t.claimed, id)
	delete(t.awake, id)
	delete(t.egress, id)
}

// awakeSince returns since when a sandbox runs: now, at the first call after it
// was started or resumed, or after this server was started.
func (t *workTracker) awakeSince(id string, now time.Time) time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	if at, ok := t.awake[id]; ok {
		return at
	}
	put(&t.awake, id, now)
	return now
}

// configured reports whether the sandbox was given to its claim.
func (t *workTracker) configured(id string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.claimed[id]
}

// setConfigured records that the sandbox was given to its claim.
func (t *workTracker) setConfigured(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	put(&t.claimed, id, true)
}

// permitted reports whether the node was told a sandbox's network policy.
func (t *workTracker) permitted(id string, e *sandbox.Egress) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return reflect.DeepEqual(t.egress[id], e)
}

// setPermitted records that the node was told the policy.
func (t *workTracker) setPermitted(id string, e *sandbox.Egress) {
	t.mu.Lock()
	defer t.mu.Unlock()
	put(&t.egress, id, e)
}

// firstSetup returns when the first set-up of id began: now, at the first call.
func (t *workTracker) firstSetup(id string, now time.Time) time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	if at, ok := t.setupSince[id]; ok {
		return at
	}
	put(&t.setupSince, id, now)
	return now
}

// mayReport reports whether gap has passed since it last returned true for id.
func (t *workTracker) mayReport(id string, now time.Time, gap time.Duration) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if at, ok := t.reportedAt[id]; ok && now.Sub(at) < gap {
		return false
	}
	put(&t.reportedAt, id, now)
	return true
}

// untilProbe returns how long it is until the next probe.
func (t *workTracker) untilProbe(id string, now time.Time) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return max(0, t.probeAt[id].Sub(now))
}

// probeAfter sets when the next probe is and returns wait.
func (t *workTracker) probeAfter(id string, now time.Time, wait time.Duration) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	put(&t.probeAt, id, now.Add(wait))
	return wait
}

// clearMisses sets the number of misses in a row to 0.
func (t *workTracker) clearMisses(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.misses, id)
}

// addMiss counts a miss and returns how many there are in a row.
func (t *workTracker) addMiss(id string) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	put(&t.misses, id, t.misses[id]+1)
	return t.misses[id]
}

// unreachableFor returns for how long every look at the ports, now the last one,
// found the probe's port on a loopback address alone.
func (t *workTracker) unreachableFor(id string, now time.Time, is bool) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !is {
		delete(t.localSince, id)
		return 0
	}
	if _, ok := t.localSince[id]; !ok {
		put(&t.localSince, id, now)
	}
	return now.Sub(t.localSince[id])
}

// untilCheck returns how long it is until the next liveness check.
func (t *workTracker) untilCheck(id string, now time.Time) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return max(0, t.checkAt[id].Sub(now))
}

// checkAfter sets when the next liveness check is and returns wait.
func (t *workTracker) checkAfter(id string, now time.Time, wait time.Duration) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	put(&t.checkAt, id, now.Add(wait))
	return wait
}

// clearDead sets the number of failed liveness checks in a row to 0.
func (t *workTracker) clearDead(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.dead, id)
}

// addDead counts a failed liveness check and returns how many there are in a row.
func (t *workTracker) addDead(id string) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	put(&t.dead, id, t.dead[id]+1)
	return t.dead[id]
}

func put[V any](m *map[string]V, id string, v V) {
	if *m == nil {
		*m = map[string]V{}
	}
	(*m)[id] = v
}
