package ingress

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"miren.dev/runtime/pkg/errs"
)

// Waits between attempts to ask the server.
const (
	minAsk = time.Second
	maxAsk = 30 * time.Second
)

// asker keeps a list of the server in memory and in a file. While the server does not
// answer, it keeps the last list.
type asker[T comparable] struct {
	what   string                             // in logs
	ask    func(context.Context) ([]T, error) // nil: never
	use    func([]T)                          // uses a list that has changed
	file   string                             // "": none
	magic  string                             // begins the file
	logger *slog.Logger
	wake   chan struct{} // the list has changed
	list   []T           // in use; used by run and load only
}

// refresh has run ask for the list again.
func (a *asker[T]) refresh() {
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// load uses the list that the last process saved, if there is any.
func (a *asker[T]) load() {
	if a.file == "" {
		return
	}
	var list []T
	switch err := loadFile(a.file, a.magic, &list); {
	case errs.Is(err, errs.NotFound):
	case err != nil:
		a.logger.Error("a saved list cannot be used, starting without", "list", a.what, "error", err)
	default:
		a.install(list)
	}
}

func (a *asker[T]) install(list []T) {
	a.list = list
	a.use(list)
}

// run asks for the list at its start and after each refresh, until ctx ends.
func (a *asker[T]) run(ctx context.Context) {
	if a.ask == nil {
		return
	}
	a.refresh()
	pause := minAsk
	for {
		select {
		case <-a.wake:
		case <-ctx.Done():
			return
		}
		list, err := a.ask(ctx)
		if err == nil {
			pause = minAsk
			if !slices.Equal(list, a.list) {
				a.install(list)
				a.save()
			}
			continue
		}
		a.logger.Debug("cannot ask for a list", "list", a.what, "error", err)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
		pause = min(2*pause, maxAsk)
		a.refresh()
	}
}

func (a *asker[T]) save() {
	if a.file == "" {
		return
	}
	if err := saveFile(a.file, a.magic, a.list); err != nil {
		a.logger.Error("a list cannot be saved", "list", a.what, "error", err)
	}
}
