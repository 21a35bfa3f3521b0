package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/components/baseimage"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/appconfig"
	"miren.dev/runtime/pkg/stack"
)

// benchDeploy compares a redeploy after a changed line with the build alone.
func benchDeploy(ctx context.Context, b *bench) error {
	i, err := b.installation(ctx)
	if err != nil {
		return err
	}
	peer, err := newBuildctl(ctx, i)
	if err != nil {
		return err
	}
	var p pair
	err = b.turns(ctx, 5, func(side int) (figures, error) {
		src := []*deployable{i.app, peer.src}[side]
		if err := src.change(); err != nil {
			return nil, err
		}
		if side == 0 {
			took, err := src.deploy(ctx, i)
			return figures{took.Seconds()}, err
		}
		began := time.Now()
		err := peer.build(ctx)
		return figures{time.Since(began).Seconds()}, err
	}, &p)
	if err != nil {
		return err
	}
	w := row{What: "warm redeploy to serving", Unit: "s", Ours: median(p.ours), Peer: "buildctl build", Theirs: median(p.peer), Ratio: p.ratio()}
	var over []float64 // the remainder of 1.5 × + 1 s, per round
	for n := range p.ours {
		over = append(over, p.ours[n]-1.5*p.peer[n]-1)
	}
	w.goal("≤ 1.5× + 1 s", median(over) <= 0)
	b.report.add(w)
	return nil
}

// buildctl builds the app's source with BuildKit's own client.
type buildctl struct {
	i     *install
	src   *deployable
	plan  *stack.Plan
	appID string
	bases map[string]*baseimage.Image
	dir   string
}

func newBuildctl(ctx context.Context, i *install) (*buildctl, error) {
	c := &buildctl{i: i, bases: map[string]*baseimage.Image{}, dir: i.bench.scratch.path("buildctl")}
	var err error
	if c.src, err = i.app.copyTo(filepath.Join(c.dir, "src")); err != nil {
		return nil, err
	}
	tree := os.DirFS(c.src.dir)
	cfg, err := appconfig.Load(tree)
	if err != nil {
		return nil, err
	}
	if c.plan, err = stack.Detect(tree, cfg); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Join(c.dir, "dockerfile"), 0o755); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(c.dir, "dockerfile", "Dockerfile"), []byte(c.plan.Dockerfile), 0o644); err != nil {
		return nil, err
	}
	// The caches of RUN --mount=type=cache are per app.
	apps, _, err := entity.List[app.App](ctx, i.store, entity.Query{Name: i.app.name})
	if err != nil {
		return nil, err
	}
	if len(apps) != 1 {
		return nil, fmt.Errorf("there are %d apps called %s", len(apps), i.app.name)
	}
	c.appID = string(apps[0].ID)
	images := baseimage.New(baseimage.Config{BinDir: i.bench.opt.bin})
	for n, name := range c.plan.Bases {
		ref, err := baseimage.Lookup(name)
		if err != nil {
			return nil, err
		}
		img, err := images.Ensure(ctx, ref, nil)
		if err != nil {
			return nil, err
		}
		// buildctl writes to a layout: it gets one that refers to the files.
		dir := filepath.Join(c.dir, fmt.Sprintf("base%d", n))
		if err := os.Mkdir(dir, 0o755); err != nil {
			return nil, err
		}
		for _, part := range []string{"blobs", "index.json", "oci-layout"} {
			if err := os.Symlink(filepath.Join(img.Dir, part), filepath.Join(dir, part)); err != nil {
				return nil, err
			}
		}
		c.bases[name] = &baseimage.Image{Dir: dir, Digest: img.Digest}
	}
	return c, nil
}

// build builds, with the product's options.
func (c *buildctl) build(ctx context.Context) error {
	args := []string{
		"--addr", "unix://" + c.i.in.Socket("buildkit", "buildkitd.sock"), "build", "--progress", "plain", "--frontend", "dockerfile.v0",
		"--local", "context=" + c.src.dir, "--local", "dockerfile=" + filepath.Join(c.dir, "dockerfile"),
		"--opt", "build-arg:BUILDKIT_CACHE_MOUNT_NS=" + c.appID,
		"--output", "type=image,dangling-name-prefix=runtime.local/buildctl,unpack=true,oci-mediatypes=true,compression=zstd,compression-level=1",
	}
	for name, img := range c.bases {
		store := "bases-" + strings.TrimPrefix(img.Digest, "sha256:")
		args = append(args, "--oci-layout", store+"="+img.Dir, "--opt", "context:"+name+"=oci-layout://"+store+"@"+img.Digest)
	}
	out, err := exec.CommandContext(ctx, filepath.Join(c.i.bench.opt.bin, "buildctl"), args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("buildctl: %w: %s", err, out[max(0, len(out)-2000):])
	}
	return nil
}
