package entity_test

import (
	"context"
	"fmt"

	"miren.dev/runtime/api"
	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/core"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/pgstore"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/testsupport/pgtest"
)

// openStore returns a store on a new database of a private PostgreSQL, with a
// project in it.
func openStore(ctx context.Context) (store *pgstore.Store, project schema.ID, remove func()) {
	url, drop, err := pgtest.Database()
	if err != nil {
		panic(err)
	}
	store, err = pgstore.Open(ctx, pgstore.Config{URL: url, Kinds: api.Kinds()})
	if err != nil {
		panic(err)
	}
	demo := &core.Project{Meta: schema.Meta{Name: "demo"}}
	if err := entity.Create(ctx, store, demo); err != nil {
		panic(err)
	}
	return store, demo.ID, func() {
		store.Close()
		if err := drop(); err != nil {
			panic(err)
		}
	}
}

// Every write states the revision that it is based on. The second of two
// writers that read the same revision gets a Conflict.
func Example() {
	ctx := context.Background()
	store, project, remove := openStore(ctx)
	defer remove()

	shop := &app.App{Meta: schema.Meta{Project: project, Name: "shop"}}
	if err := entity.Create(ctx, store, shop); err != nil {
		fmt.Println(err)
		return
	}
	first, _ := entity.Get[app.App](ctx, store, shop.ID)
	second, _ := entity.Get[app.App](ctx, store, shop.ID)

	first.Spec.Env = map[string]string{"COLOR": "red"}
	fmt.Println("first:", entity.UpdateSpec(ctx, store, first))
	second.Spec.Env = map[string]string{"COLOR": "blue"}
	fmt.Println("second conflicts:", errs.Is(entity.UpdateSpec(ctx, store, second), errs.Conflict))

	// Output:
	// first: <nil>
	// second conflicts: true
}

// ModifySpec reads, changes and writes, again on conflict.
func ExampleModifySpec() {
	ctx := context.Background()
	store, project, remove := openStore(ctx)
	defer remove()

	shop := &app.App{Meta: schema.Meta{Project: project, Name: "shop"}}
	if err := entity.Create(ctx, store, shop); err != nil {
		fmt.Println(err)
		return
	}
	changed, err := entity.ModifySpec(ctx, store, shop.ID, func(a *app.App) error {
		a.Spec.VersionCounter++
		return nil
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("version", changed.Spec.VersionCounter)

	// Output:
	// version 1
}

// A list returns the position from which to watch, so that no change between
// the two is missed.
func ExampleList_thenWatch() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	store, project, remove := openStore(ctx)
	defer remove()

	apps, token, err := entity.List[app.App](ctx, store, entity.Query{})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(len(apps), "apps")
	if err := entity.Create(ctx, store, &app.App{Meta: schema.Meta{Project: project, Name: "shop"}}); err != nil {
		fmt.Println(err)
		return
	}

	watch, err := store.Watch(ctx, entity.WatchQuery{Kinds: []string{app.AppKind.Name}, From: token})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer watch.Close()
	for {
		events, err := watch.Next(ctx)
		if err != nil {
			fmt.Println(err)
			return
		}
		for _, e := range events {
			if e.Type == entity.EventPut {
				fmt.Println("created or changed:", e.Record.Name)
				return
			}
		}
	}

	// Output:
	// 0 apps
	// created or changed: shop
}
