package retention

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"miren.dev/runtime/components/containerd"
	"miren.dev/runtime/domain/images"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
)

// CopyStore is an ImageStore that knows the sizes of its images; *containerd.Images is one.
type CopyStore interface {
	ImageStore
	// Usage returns the bytes of disk that an image uses.
	Usage(ctx context.Context, ref string) (int64, error)
}

// Copies deletes images of a runner, which are copies of images of its server: of those that no sandbox and no snapshot of
// the runner names, the most recently used stay, up to MaxBytes.
type Copies struct {
	Store    entity.Reader // as far as it concerns the runner
	Images   CopyStore
	MaxBytes int64 // of copies that are not used; an image counts with what it shares with others
	Logger   *slog.Logger
	Now      func() time.Time // nil: time.Now

	mu   sync.Mutex           // guards last; held while an image is deleted
	last map[string]time.Time // last use of images, by reference, since the start of the process
}

// Use notes that an image is about to be used. It stays for ten minutes at least, in which the sandbox or snapshot that
// names it must exist.
func (r *Copies) Use(ref string) { r.use(ref, r.now()) }

func (r *Copies) use(ref string, at time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.last == nil {
		r.last = map[string]time.Time{}
	}
	r.last[ref] = at
}

func (r *Copies) now() time.Time {
	if r.Now != nil {
		return r.Now()
	}
	return time.Now()
}

// Run collects at once and every two minutes until ctx ends.
func (r *Copies) Run(ctx context.Context) error {
	if _, err := r.Collect(ctx); err != nil && ctx.Err() == nil {
		r.Logger.Warn("collect unused images", "error", err)
	}
	return collectImages(ctx, r.Collect, r.Logger)
}

// Collect deletes unused images beyond MaxBytes and returns their number. It deletes nothing unless it could read all
// sandboxes and snapshots. It reads these after the images, so that it sees one that names an image meanwhile.
func (r *Copies) Collect(ctx context.Context) (int, error) {
	all, err := r.Images.List(ctx, nil)
	if err != nil {
		return 0, err
	}
	used := map[string]bool{}
	if err := instantiated(ctx, r.Store, used); err != nil {
		return 0, err
	}
	now := r.now()
	var unused []containerd.Record
	for _, img := range all {
		switch {
		case !images.Built(img.Ref) && !strings.HasPrefix(img.Ref, images.BasePrefix): // a snapshot's own name of an image
		case used[img.Ref]:
			r.use(img.Ref, now)
		default:
			unused = append(unused, img)
		}
	}
	slices.SortFunc(unused, func(a, b containerd.Record) int { // the most recently used first
		return cmp.Or(r.lastUse(b).Compare(r.lastUse(a)), strings.Compare(a.Ref, b.Ref))
	})
	var kept int64
	n := 0
	for _, img := range unused {
		size, err := r.Images.Usage(ctx, img.Ref)
		if errs.Is(err, errs.NotFound) {
			continue
		}
		if err != nil {
			return n, err
		}
		if kept+size <= r.MaxBytes {
			kept += size
			continue
		}
		deleted, err := r.delete(ctx, img, now)
		if err != nil {
			return n, errs.Wrap(err, "delete image %s", img.Ref)
		}
		if deleted {
			r.Logger.Info("deleted", "kind", "image", "image", img.Ref, "bytes", size)
			n++
		}
	}
	r.forget(all)
	return n, nil
}

// lastUse returns when an image was used last, or made.
func (r *Copies) lastUse(img containerd.Record) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	if at := r.last[img.Ref]; at.After(img.CreatedAt) {
		return at
	}
	return img.CreatedAt
}

// delete deletes an image unless it was made or used just now.
func (r *Copies) delete(ctx context.Context, img containerd.Record, now time.Time) (bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if now.Sub(r.last[img.Ref]) < youngImage || now.Sub(img.CreatedAt) < youngImage {
		return false, nil
	}
	return true, r.Images.Delete(ctx, img.Ref)
}

// forget drops the times of images that are gone.
func (r *Copies) forget(all []containerd.Record) {
	there := map[string]bool{}
	for _, img := range all {
		there[img.Ref] = true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for ref, at := range r.last {
		if !there[ref] && r.now().Sub(at) >= youngImage { // a young one is being fetched
			delete(r.last, ref)
		}
	}
}
