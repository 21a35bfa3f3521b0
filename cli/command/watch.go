package command

import (
	"context"
	"time"

	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// settle is how long a view waits for further changes before it is printed again.
const settle = 50 * time.Millisecond

// refresh is how often a view is printed without a change, since ages grow.
const refresh = 10 * time.Second

// Watch prints a view, and again after every change of the kinds, until ctx
// ends. Without watch it prints the view once.
func (e *Env) Watch(ctx context.Context, watch bool, kinds []string, draw func(ctx context.Context) error) error {
	if !watch {
		return draw(ctx)
	}
	r, err := e.Store(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	changed := make(chan error, 1)
	for _, k := range kinds {
		go follow(ctx, r, k, changed)
	}
	tick := time.NewTicker(refresh)
	defer tick.Stop()
	for {
		if !e.JSON {
			e.Clear()
		}
		if err := draw(ctx); err != nil && !errs.Is(err, errs.Unavailable) {
			return err
		} else if err != nil {
			e.Notef("the server cannot be reached; waiting for it\n")
		}
		select {
		case err := <-changed:
			if err != nil {
				return err
			}
		case <-tick.C:
			if e.JSON || !e.Terminal {
				continue
			}
		case <-ctx.Done():
			return ctx.Err()
		}
		timer := time.NewTimer(settle)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
		// The next print includes changes that came meanwhile.
		select {
		case err := <-changed:
			if err != nil {
				return err
			}
		default:
		}
	}
}

// Repeat reads and prints, and with again once more on an empty screen after every
// interval, until ctx ends or an error other than Unavailable.
func (e *Env) Repeat(ctx context.Context, again bool, interval time.Duration, read func(ctx context.Context) (show func() error, err error)) error {
	if !again {
		show, err := read(ctx)
		if err != nil {
			return err
		}
		return show()
	}
	if interval <= 0 {
		return exit.Usagef("the interval is not above 0")
	}
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		show, err := read(ctx)
		if errs.Is(err, errs.Unavailable) {
			e.Notef("the server cannot be reached; waiting for it\n")
		} else if err != nil {
			return err
		} else {
			if !e.JSON {
				e.Clear()
			}
			if err := show(); err != nil {
				return err
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// follow sends on changed for every change of a kind, and an error that ends it.
func follow(ctx context.Context, r entity.Reader, kind string, changed chan<- error) {
	tell := func(err error) {
		select {
		case changed <- err:
		case <-ctx.Done():
		default:
			if err != nil {
				select {
				case changed <- err:
				case <-ctx.Done():
				}
			}
		}
	}
	var from schema.Token
	for ctx.Err() == nil {
		err := followOnce(ctx, r, kind, &from, func() { tell(nil) })
		switch errs.ClassOf(err) {
		case errs.Compacted, errs.ResourceExhausted, errs.Unavailable:
			if errs.Is(err, errs.Compacted) {
				from = schema.Token{}
			}
			tell(nil)
			select {
			case <-time.After(time.Second):
			case <-ctx.Done():
			}
		default:
			if ctx.Err() == nil {
				tell(err)
				return
			}
		}
	}
}

func followOnce(ctx context.Context, r entity.Reader, kind string, from *schema.Token, changed func()) error {
	w, err := r.Watch(ctx, entity.WatchQuery{Kinds: []string{kind}, From: *from})
	if err != nil {
		return err
	}
	defer w.Close()
	for {
		events, err := w.Next(ctx)
		if err != nil {
			return err
		}
		for _, ev := range events {
			*from = ev.Token
			if ev.Type != entity.EventBookmark {
				changed()
			}
		}
	}
}
