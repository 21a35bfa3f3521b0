// Package upload sends the source of a folder to the server: only the contents
// that it lacks.
package upload

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/cli/rollout"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/source"
)

// Walk reads a folder. The digests of its files are cached for the next time.
func Walk(ctx context.Context, dir string) (*source.Tree, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, errs.New(errs.InvalidArgument, "source folder: %w", err)
	}
	var cache *source.Cache
	if base, err := os.UserCacheDir(); err == nil {
		cache = source.OpenCache(filepath.Join(base, "runtime", "source"), dir)
	}
	tree, err := source.Walk(ctx, dir, source.WalkOptions{Cache: cache})
	if err == nil && cache != nil {
		_ = cache.Save() // a failure costs only speed
	}
	return tree, err
}

// Send sends the contents that the server lacks and returns the digest of the
// source.
func Send(ctx context.Context, client app.DeploysClient, tree *source.Tree, v rollout.View) (string, error) {
	encoded, err := tree.Manifest.Encode()
	if err != nil {
		return "", err
	}
	plan, err := client.PlanUpload(ctx, &app.PlanUploadRequest{Manifest: encoded})
	if err != nil {
		return "", errs.Wrap(err, "upload the source")
	}
	u := rollout.Upload{Files: len(tree.Manifest.Files), Missing: len(plan.Missing)}
	sizes := map[source.Digest]int64{}
	for _, f := range tree.Manifest.Files {
		sizes[f.Digest] = f.Size
	}
	digests := make([]source.Digest, len(plan.Missing))
	for i, m := range plan.Missing {
		digests[i] = source.Digest(m)
		u.Bytes += sizes[digests[i]]
	}
	v.Upload(u)
	if len(digests) > 0 {
		if err := send(ctx, client, tree, plan.Source, digests, u, v); err != nil {
			return "", errs.Wrap(err, "upload the source")
		}
	}
	u.Sent, u.Done = u.Bytes, true
	v.Upload(u)
	return plan.Source, nil
}

func send(ctx context.Context, client app.DeploysClient, tree *source.Tree, src string, digests []source.Digest, u rollout.Upload, v rollout.View) error {
	g, gctx := errgroup.WithContext(ctx)
	progress := make(chan int64)
	g.Go(func() error {
		defer close(progress)
		s, err := client.Upload(gctx, &app.UploadRequest{Source: src})
		if err != nil {
			return err
		}
		defer s.Close()
		var sent int64
		err = tree.WritePack(gctx, s.Writer(), digests, func(n int64) {
			sent += n
			select {
			case progress <- sent:
			case <-gctx.Done():
			}
		})
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		// If the server stopped reading, its answer has the reason.
		if cerr := s.CloseSend(); cerr != nil && !errors.Is(cerr, io.EOF) && err == nil {
			return cerr
		}
		if _, rerr := s.Recv(); rerr != nil {
			if errors.Is(rerr, io.EOF) {
				return errs.New(errs.Unavailable, "the server did not confirm the upload")
			}
			return rerr
		}
		return nil
	})
	var shown time.Time
	for n := range progress {
		if u.Sent = n; time.Since(shown) >= rollout.TickInterval {
			shown = time.Now()
			v.Upload(u)
		}
	}
	return g.Wait()
}
