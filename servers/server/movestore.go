package server

import (
	"context"
	"log/slog"
	"strings"

	"miren.dev/runtime/api"
	"miren.dev/runtime/entity/etcdstore"
	"miren.dev/runtime/entity/pgstore"
	"miren.dev/runtime/entity/sqlitestore"
	"miren.dev/runtime/entity/transfer"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/instance"
)

// PrivateStore names the private PostgreSQL of an installation where the URL of a
// store is expected.
const PrivateStore = "private"

// MoveStore copies every entity of an installation from one store to another, an
// empty one. URLs are those of store.url, or PrivateStore. The server must not run:
// FailedPrecondition otherwise. It may be repeated after an error or a kill; for
// the other errors see transfer.Copy.
func MoveStore(ctx context.Context, in *instance.Instance, from, to string, log *slog.Logger, progress func(step transfer.Step, done, all int64)) (*transfer.Result, error) {
	if from == to {
		return nil, errs.New(errs.InvalidArgument, "the source and the target are the same store")
	}
	if err := lockWhole(in); err != nil {
		return nil, err
	}
	defer in.Unlock()
	if from == PrivateStore || to == PrivateStore {
		pg, stop, err := privateStore(ctx, in, log)
		if err != nil {
			return nil, err
		}
		defer stop()
		for _, url := range []*string{&from, &to} {
			if *url == PrivateStore {
				*url = pg.URL()
			}
		}
	}
	source, err := openOffline(ctx, from, false)
	if err != nil {
		return nil, errs.Wrap(err, "source")
	}
	defer source.Close()
	target, err := openOffline(ctx, to, true)
	if err != nil {
		return nil, errs.Wrap(err, "target")
	}
	defer target.Close()
	return transfer.Copy(ctx, source, target, transfer.Options{Kinds: api.Kinds(), Progress: progress})
}

// openOffline opens the store that a URL names, for a copy.
func openOffline(ctx context.Context, url string, create bool) (transfer.Store, error) {
	switch {
	case strings.HasPrefix(url, sqlitestore.Scheme):
		path, err := sqlitestore.PathOf(url)
		if err != nil {
			return nil, err
		}
		return sqlitestore.OpenOffline(ctx, path, create)
	case strings.HasPrefix(url, etcdstore.Scheme):
		return etcdstore.OpenOffline(ctx, url, api.Kinds(), create)
	}
	return pgstore.OpenOffline(ctx, url, create)
}
