package docker

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"sync"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/moby/moby/client"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"miren.dev/runtime/components/containerd"
	"miren.dev/runtime/pkg/errs"
)

// Images is the instance's image store.
type Images interface {
	Resolve(ctx context.Context, ref string) (*containerd.Image, error)
	Manifest(ctx context.Context, ref string) (content.Store, ocispec.Descriptor, error)
}

// imageLoads serialises loads: the same image is loaded once. It also keeps the images between their load and the
// container that uses them from sweepImages.
type imageLoads struct{ sync.RWMutex }

// image is an image of the engine.
type image struct {
	id     string // by which containers are made of it
	config ocispec.ImageConfig
}

// loadImage gives the engine an image of the instance's store, unless it has it, and calls use with it. The engine keeps
// it meanwhile. Its id is the digest of the configuration, or with the engine's containerd store that of the manifest.
func (d *Driver) loadImage(ctx context.Context, ref string, use func(image) error) error {
	im, err := d.cfg.Images.Resolve(ctx, ref)
	if err != nil {
		return err
	}
	store, manifest, err := d.manifest(ctx, im)
	if err != nil {
		return err
	}
	ids := []string{manifest.Config.Digest.String(), im.Digest.String()}
	d.images.RLock()
	id, err := d.findImage(ctx, ids)
	if err == nil {
		defer d.images.RUnlock()
		return use(image{id, im.Config})
	}
	d.images.RUnlock()
	if !errs.Is(err, errs.NotFound) {
		return err
	}
	d.images.Lock()
	id, err = d.findImage(ctx, ids)
	if errs.Is(err, errs.NotFound) {
		if err = d.sendImage(ctx, im.Ref, store, manifest); err == nil {
			id, err = d.findImage(ctx, ids)
		}
	}
	if err == nil {
		// A name, so that `docker image prune` leaves it, and that we find it.
		_, err = d.engine.ImageTag(ctx, client.ImageTagOptions{Source: id, Target: d.repository() + ":" + strings.TrimPrefix(id, "sha256:")})
		err = engineError(err, "name image %s", ref)
	}
	if err != nil {
		d.images.Unlock()
		return err
	}
	defer d.images.Unlock()
	return use(image{id, im.Config})
}

// repository is the name of our images in the engine.
func (d *Driver) repository() string { return d.cfg.Instance.Name("") + "/sandbox" }

// manifest returns the manifest of an image for this machine's platform, and the store of its content.
func (d *Driver) manifest(ctx context.Context, im *containerd.Image) (content.Store, ocispec.Manifest, error) {
	none := ocispec.Manifest{}
	store, desc, err := d.cfg.Images.Manifest(ctx, im.Ref)
	if err != nil {
		return nil, none, err
	}
	m, err := images.Manifest(ctx, store, desc, platforms.Default())
	return store, m, containerd.Error(err, "manifest of image %s", im.Ref)
}

// findImage returns the one of the ids by which the engine has an image.
func (d *Driver) findImage(ctx context.Context, ids []string) (string, error) {
	for _, id := range ids {
		res, err := d.engine.ImageInspect(ctx, id)
		if err == nil && res.ID == id {
			return id, nil
		}
		if err != nil && !errdefs.IsNotFound(err) {
			return "", engineError(err, "look for image %s", id)
		}
	}
	return "", errs.New(errs.NotFound, "the Docker engine has no image %s", ids[0])
}

// sendImage has the engine load an image. The engine checks the content against the digests in the configuration.
func (d *Driver) sendImage(ctx context.Context, ref string, store content.Store, m ocispec.Manifest) error {
	r, w := io.Pipe()
	exported := make(chan error, 1)
	go func() {
		err := writeArchive(ctx, w, store, m)
		w.CloseWithError(err)
		exported <- err
	}()
	res, err := d.engine.ImageLoad(ctx, r, client.ImageLoadWithQuiet(true))
	if err == nil {
		var answer []byte
		answer, err = io.ReadAll(io.LimitReader(res, 1<<20))
		err = errors.Join(err, res.Close(), loadFailure(answer))
	}
	r.CloseWithError(err)
	if e := <-exported; e != nil && !errors.Is(e, err) {
		err = e
	}
	return engineError(err, "give image %s to the Docker engine", ref)
}

// loadFailure returns the error in the engine's answer, whose status was sent before the work was done.
func loadFailure(answer []byte) error {
	dec := json.NewDecoder(strings.NewReader(string(answer)))
	for {
		var m struct {
			Error string `json:"error"`
		}
		if err := dec.Decode(&m); err != nil {
			return nil
		}
		if m.Error != "" {
			return errs.New(errs.Internal, "%s", m.Error)
		}
	}
}

// sweepImages removes the images of ours that no container uses.
func (d *Driver) sweepImages(ctx context.Context) error {
	d.images.Lock()
	defer d.images.Unlock()
	list, err := d.engine.ImageList(ctx, client.ImageListOptions{Filters: make(client.Filters).Add("reference", d.repository())})
	if err != nil {
		return engineError(err, "list images")
	}
	used, err := d.engine.ContainerList(ctx, client.ContainerListOptions{All: true})
	if err != nil {
		return engineError(err, "list containers")
	}
	inUse := map[string]bool{}
	for _, c := range used.Items {
		inUse[c.ImageID] = true
	}
	var all error
	for _, im := range list.Items {
		if inUse[im.ID] {
			continue
		}
		for _, tag := range im.RepoTags {
			if !strings.HasPrefix(tag, d.repository()+":") {
				continue
			}
			if _, err := d.engine.ImageRemove(ctx, tag, client.ImageRemoveOptions{}); err != nil && !errdefs.IsNotFound(err) {
				all = errors.Join(all, engineError(err, "remove image %s", tag))
			}
		}
	}
	return all
}
