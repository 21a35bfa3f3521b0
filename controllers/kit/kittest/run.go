package kittest

import (
	"context"
	"sync"
	"testing"

	"miren.dev/runtime/controllers/kit"
	"miren.dev/runtime/entity/informer"
)

// Run runs controllers and the informers that wake them, until stop is called
// or the test ends. cfg.Informers is set to set.
func Run(t testing.TB, set *informer.Set, cfg kit.Config, controllers ...kit.Controller) (rt *kit.Runtime, stop func()) {
	t.Helper()
	cfg.Informers = set
	rt = kit.New(cfg)
	for _, c := range controllers {
		if err := rt.Add(c); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for _, run := range []func(context.Context) error{set.Run, rt.Run} {
		wg.Go(func() {
			if err := run(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	stop = sync.OnceFunc(func() {
		cancel()
		wg.Wait()
	})
	t.Cleanup(stop)
	return rt, stop
}
