package runsc

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"miren.dev/runtime/pkg/fault"
)

// step is one part of setting up a sandbox.
type step struct {
	name  string
	after []string // steps that must be done before; earlier in the list
	// setup may find objects of an interrupted attempt.
	setup func(ctx context.Context) error
	// teardown is safe whether or not setup ran, and however far it got. nil:
	// nothing to do.
	teardown func(ctx context.Context) error
}

// setUp runs the steps, each as soon as the steps in its after list are done.
// It returns the first error, after every running step has ended.
func setUp(ctx context.Context, steps []step) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var (
		wg    sync.WaitGroup
		once  sync.Once
		first error
		done  = make(map[string]chan struct{}, len(steps))
	)
	for _, s := range steps {
		done[s.name] = make(chan struct{})
	}
	for _, s := range steps {
		wg.Go(func() {
			for _, name := range s.after {
				select {
				case <-done[name]:
				case <-ctx.Done():
					return
				}
			}
			if ctx.Err() != nil {
				return
			}
			fault.Point("setup", s.name, fault.Before)
			err := s.setup(ctx)
			fault.Point("setup", s.name, fault.After)
			if err != nil {
				once.Do(func() { first = fmt.Errorf("%s: %w", s.name, err) })
				cancel()
				return
			}
			close(done[s.name])
		})
	}
	wg.Wait()
	if first == nil {
		// The caller cancelled before a step could report it.
		for _, s := range steps {
			select {
			case <-done[s.name]:
			default:
				return context.Cause(ctx)
			}
		}
	}
	return first
}

// tearDown runs all teardowns, last step first. It continues after an error, to
// remove as much as possible, but keeps what a failed step still uses: it does
// not tear down a step while one that comes after it failed.
func tearDown(ctx context.Context, steps []step) error {
	var all error
	failed := map[string]bool{}
	for i := len(steps) - 1; i >= 0; i-- {
		s := steps[i]
		if s.teardown == nil || failed[s.name] {
			for _, name := range s.after {
				failed[name] = failed[name] || failed[s.name]
			}
			continue
		}
		fault.Point("teardown", s.name, fault.Before)
		err := s.teardown(ctx)
		fault.Point("teardown", s.name, fault.After)
		if err != nil {
			all = errors.Join(all, fmt.Errorf("%s: %w", s.name, err))
			for _, name := range s.after {
				failed[name] = true
			}
		}
	}
	return all
}
