package buildkit

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"

	"miren.dev/runtime/components/network/firewall"
	"miren.dev/runtime/pkg/proc"
)

// retryStop is the time after which a daemon that could not be ended is tried again.
const retryStop = time.Minute

// Run keeps the daemon running, and repairs the firewall of its steps, until ctx
// ends. Then it leaves the daemon running. A daemon on demand is kept from its
// start until no build has used it for Config.IdleStop.
func (d *Daemon) Run(ctx context.Context) error {
	if !d.cfg.OnDemand {
		return d.keep(ctx)
	}
	for {
		select {
		case <-d.begun:
		case <-ctx.Done():
			return nil
		}
		kept, cancel := context.WithCancel(ctx)
		ended := make(chan error, 1)
		go func() { ended <- d.keep(kept) }()
		var err error
		select {
		case err = <-ended:
		case <-d.idle(kept):
			cancel()
			err = <-ended
		}
		cancel()
		if err != nil || ctx.Err() != nil {
			return err
		}
		if err := d.stopIdle(ctx); err != nil && ctx.Err() == nil {
			d.cfg.Logger.Warn("buildkitd is not used and cannot be ended", "error", err, "retry_in", retryStop)
		}
	}
}

// keep keeps the daemon running until ctx ends.
func (d *Daemon) keep(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		proc.Keep(ctx, "buildkitd", d.cfg.Logger, func(ctx context.Context) (*proc.Process, error) {
			_, p, err := d.ensure(ctx)
			return p, err
		})
		return nil
	})
	g.Go(func() error { return firewall.Keep(ctx, d.cfg.Logger, d.checkFirewall) })
	return g.Wait()
}

// use notes that a build begins; the returned function, that it has ended.
func (d *Daemon) use() (release func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.uses++
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.uses--
		d.used = time.Now()
	}
}

// idleFor returns the time until the daemon counts as unused; 0: it is.
func (d *Daemon) idleFor() time.Duration {
	if d.uses > 0 {
		return d.cfg.IdleStop
	}
	return max(0, time.Until(d.used.Add(d.cfg.IdleStop)))
}

// idle returns a channel that is closed when the daemon is unused. Without
// Config.IdleStop it never is.
func (d *Daemon) idle(ctx context.Context) <-chan struct{} {
	unused := make(chan struct{})
	if d.cfg.IdleStop <= 0 {
		return unused
	}
	go func() {
		for {
			d.mu.Lock()
			wait := d.idleFor()
			d.mu.Unlock()
			if wait == 0 {
				close(unused)
				return
			}
			select {
			case <-ctx.Done():
				return
			case <-time.After(wait):
			}
		}
	}()
	return unused
}

// stopIdle ends the daemon if it still is unused. Otherwise Run goes on keeping it.
func (d *Daemon) stopIdle(ctx context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.idleFor() > 0 {
		d.begin()
		return nil
	}
	d.cfg.Logger.Info("buildkitd is not used: it ends until the next build")
	if err := d.stop(ctx); err != nil {
		d.used = time.Now().Add(retryStop - d.cfg.IdleStop)
		d.begin()
		return err
	}
	select {
	case <-d.begun: // of a start that Run saw already
	default:
	}
	return nil
}

// begin tells Run that the daemon runs.
func (d *Daemon) begin() {
	select {
	case d.begun <- struct{}{}:
	default:
	}
}
