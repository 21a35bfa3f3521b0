package server

import (
	"context"
	"time"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/execution"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/entity/informer"
	"miren.dev/runtime/pkg/instance"
)

// Bounds of the time between two looks at who uses the server.
const (
	minIdlePoll = 100 * time.Millisecond
	maxIdlePoll = 10 * time.Second
)

// idleEnd is the error of a server that ends since nobody uses it.
type idleEnd struct {
	after   time.Duration
	release func() // lets processes use the installation again
}

func (e *idleEnd) Error() string { return "nobody used the server for " + e.after.String() }

// awaitIdle returns an *idleEnd when nobody has used the server for the time of
// idle_end, nil when ctx ends. No process can begin to use the installation
// after that, until the end is released.
func (f *front) awaitIdle(ctx context.Context, in *instance.Instance) error {
	after := f.c.cfg.IdleEnd
	tick := time.NewTicker(min(max(after/10, minIdlePoll), maxIdlePoll))
	defer tick.Stop()
	for last := time.Now(); ; {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		release, free, err := in.Retire()
		if err != nil {
			return err
		}
		if !free || f.used() {
			last = time.Now()
		} else if time.Since(last) >= after {
			f.c.logger.Info("the server ends with everything that it runs", "reason", "idle", "idle_end", after)
			return &idleEnd{after, release}
		}
		release()
	}
}

// used reports whether anybody uses the server: there is a connection, or work
// that goes on without one. Sandboxes of warm pools and paused ones are no use.
func (f *front) used() bool {
	set := f.c.informers
	if f.rpc.Connections() > 0 || f.ready() != nil {
		return true
	}
	for _, sb := range informer.Of[sandbox.Sandbox](set).List() {
		if sb.Spec.WarmPool == "" && sb.Status.Phase != sandbox.SandboxPhasePaused && !sb.Status.Phase.Ended() {
			return true
		}
	}
	for _, x := range informer.Of[execution.Execution](set).List() {
		if x.Status.Phase != execution.PhaseEnded {
			return true
		}
	}
	for _, b := range informer.Of[app.Build](set).List() {
		if !b.Status.Phase.Ended() {
			return true
		}
	}
	return false
}
