package containerd

import (
	"context"
	"io"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/images/archive"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/platforms"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/proc"
)

// Running reports whether the daemon runs.
func (d *Daemon) Running() (bool, error) {
	p, err := proc.Find(d.recordFile())
	return p != nil, err
}

// ExportAll writes images, found by their exact names, as one OCI archive, in which
// what they share is once.
func (s *Images) ExportAll(ctx context.Context, records []Record, w io.Writer) error {
	c, err := s.daemon.Client()
	if err != nil {
		return err
	}
	opts := []archive.ExportOpt{archive.WithPlatform(platforms.Default()), archive.WithSkipDockerManifest()}
	for _, r := range records {
		opts = append(opts, archive.WithImage(c.ImageService(), r.Ref))
	}
	return Error(c.Export(ctx, w, opts...), "export images")
}

// ImportAll reads an archive of ExportAll with these images, and gives each its
// name and labels.
func (s *Images) ImportAll(ctx context.Context, records []Record, r io.Reader) error {
	c, err := s.daemon.Client()
	if err != nil {
		return err
	}
	ctx, done, err := c.WithLease(ctx, leases.WithRandomID(), leases.WithExpiration(time.Hour))
	if err != nil {
		return Error(err, "import images")
	}
	defer done(context.WithoutCancel(ctx))
	imported, err := c.Import(ctx, r, client.WithImportPlatform(platforms.Default()))
	if err != nil {
		return Error(err, "import images")
	}
	have := map[string]bool{}
	for _, i := range imported {
		have[i.Name+" "+i.Target.Digest.String()] = true
	}
	for _, want := range records {
		if !have[want.Ref+" "+want.Digest.String()] {
			return errs.New(errs.Corrupt, "the archive of the images has no %s with digest %s", want.Ref, want.Digest)
		}
	}
	for _, i := range imported {
		for _, want := range records {
			if want.Ref != i.Name {
				continue
			}
			if _, err := s.put(ctx, c.ImageService(), i.Name, i.Target, want.Labels); err != nil {
				return err
			}
		}
	}
	return nil
}
