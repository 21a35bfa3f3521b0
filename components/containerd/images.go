package containerd

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/images/archive"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"miren.dev/runtime/pkg/errs"
)

// Image is what a sandbox needs of an image.
type Image struct {
	Ref     string // canonical: name@digest
	Digest  digest.Digest
	Config  ocispec.ImageConfig
	ChainID string // the snapshot on which a container's is made
	// size of the compressed layers and the configuration, in bytes
	Size      int64
	Labels    map[string]string
	CreatedAt time.Time
}

// Images is the image store of an instance. containerd does not collect an
// image that has a record, nor its layers.
type Images struct {
	daemon *Daemon

	mu       sync.Mutex
	resolved map[digest.Digest]*Image // unpacked images; immutable once added
	unpack   map[digest.Digest]chan struct{}
}

// NewImages returns the images of d's instance.
func NewImages(d *Daemon) *Images {
	return &Images{daemon: d, resolved: map[digest.Digest]*Image{}, unpack: map[digest.Digest]chan struct{}{}}
}

// Canonical returns the reference of an image by name and digest.
func Canonical(name string, d digest.Digest) string {
	name, _, _ = strings.Cut(name, "@")
	return name + "@" + d.String()
}

// digestOf returns the digest in a canonical reference, or "".
func digestOf(ref string) digest.Digest {
	_, s, ok := strings.Cut(ref, "@")
	if !ok {
		return ""
	}
	d, err := digest.Parse(s)
	if err != nil {
		return ""
	}
	return d
}

// Import reads an OCI layout or a Docker archive, as a tar stream with exactly
// one image, and stores it under name@digest, which it returns.
func (s *Images) Import(ctx context.Context, tar io.Reader, name string, labels map[string]string) (string, error) {
	c, err := s.daemon.Client()
	if err != nil {
		return "", err
	}
	ctx, done, err := c.WithLease(ctx, leases.WithRandomID(), leases.WithExpiration(time.Hour))
	if err != nil {
		return "", Error(err, "import image %s", name)
	}
	defer done(context.WithoutCancel(ctx))
	// The name only serves to find what was imported.
	temporary := "import.invalid/" + strings.ToLower(digest.FromString(name+time.Now().String()).Encoded())
	imported, err := c.Import(ctx, tar,
		client.WithImageRefTranslator(func(string) string { return "" }),
		client.WithDigestRef(func(d digest.Digest) string { return Canonical(temporary, d) }),
		client.WithImportPlatform(platforms.Default()))
	store := c.ImageService()
	defer func() {
		for _, i := range imported {
			_ = store.Delete(context.WithoutCancel(ctx), i.Name)
		}
	}()
	if err != nil {
		return "", Error(err, "import image %s", name)
	}
	if len(imported) != 1 {
		return "", errs.New(errs.InvalidArgument, "import image %s: the archive holds %d images, not one", name, len(imported))
	}
	return s.put(ctx, store, Canonical(name, imported[0].Target.Digest), imported[0].Target, labels)
}

// Export writes an image, found by its exact name, as an OCI archive that Import
// reads, with what the machine's platform needs of it.
func (s *Images) Export(ctx context.Context, ref string, w io.Writer) error {
	c, err := s.daemon.Client()
	if err != nil {
		return err
	}
	record, err := c.ImageService().Get(ctx, ref)
	if err != nil {
		return Error(err, "image %s", ref)
	}
	// Without a name: Import takes an archive with names for several images.
	err = c.Export(ctx, w, archive.WithManifest(record.Target), archive.WithPlatform(platforms.Default()))
	return Error(err, "export image %s", ref)
}

// put makes a record, or gives the existing one these labels.
func (s *Images) put(ctx context.Context, store images.Store, ref string, target ocispec.Descriptor, labels map[string]string) (string, error) {
	record := images.Image{Name: ref, Target: target, Labels: labels}
	_, err := store.Create(ctx, record)
	if errdefs.IsAlreadyExists(err) {
		_, err = store.Update(ctx, record, "labels")
	}
	if err != nil {
		return "", Error(err, "store image %s", ref)
	}
	return ref, nil
}

// record finds an image by its name, else by the digest in the reference: names
// change, content that is used stays.
func (s *Images) record(ctx context.Context, c *client.Client, ref string) (images.Image, error) {
	record, err := c.ImageService().Get(ctx, ref)
	if err == nil {
		return record, nil
	}
	if !errdefs.IsNotFound(err) {
		return images.Image{}, Error(err, "image %s", ref)
	}
	missing := errs.New(errs.NotFound, "image %s does not exist on this node", ref)
	d := digestOf(ref)
	if d == "" {
		return images.Image{}, missing
	}
	named, err := c.ImageService().List(ctx, "target.digest=="+d.String())
	if err != nil {
		return images.Image{}, Error(err, "image %s", ref)
	}
	if len(named) > 0 {
		return named[0], nil
	}
	target, err := describe(ctx, c.ContentStore(), d)
	if errdefs.IsNotFound(err) {
		return images.Image{}, missing
	}
	if err != nil {
		return images.Image{}, Error(err, "image %s", ref)
	}
	return images.Image{Name: ref, Target: target}, nil
}

// describe makes the descriptor of a manifest or index in the content store.
func describe(ctx context.Context, store content.Store, d digest.Digest) (ocispec.Descriptor, error) {
	info, err := store.Info(ctx, d)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	desc := ocispec.Descriptor{Digest: d, Size: info.Size}
	b, err := content.ReadBlob(ctx, store, desc)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	var header struct {
		MediaType string            `json:"mediaType"`
		Manifests []json.RawMessage `json:"manifests"`
	}
	if err := json.Unmarshal(b, &header); err != nil {
		return ocispec.Descriptor{}, errors.Join(errdefs.ErrInvalidArgument, err)
	}
	switch {
	case header.MediaType != "":
		desc.MediaType = header.MediaType
	case len(header.Manifests) > 0:
		desc.MediaType = ocispec.MediaTypeImageIndex
	default:
		desc.MediaType = ocispec.MediaTypeImageManifest
	}
	return desc, nil
}

// Resolve finds an image by reference and unpacks it if necessary. An image
// that was resolved before costs nothing; see Forget.
func (s *Images) Resolve(ctx context.Context, ref string) (*Image, error) {
	if d := digestOf(ref); d != "" {
		s.mu.Lock()
		image := s.resolved[d]
		s.mu.Unlock()
		if image != nil {
			return image, nil
		}
	}
	c, err := s.daemon.Client()
	if err != nil {
		return nil, err
	}
	record, err := s.record(ctx, c, ref)
	if err != nil {
		return nil, err
	}
	release, image, err := s.enter(ctx, record.Target.Digest)
	if err != nil || image != nil {
		return image, err
	}
	defer release()
	if image, err = s.load(ctx, c, record); err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.resolved[image.Digest] = image
	s.mu.Unlock()
	return image, nil
}

// enter lets one caller at a time unpack an image. It returns the image if
// another caller unpacked it meanwhile.
func (s *Images) enter(ctx context.Context, d digest.Digest) (release func(), _ *Image, _ error) {
	for {
		s.mu.Lock()
		if image := s.resolved[d]; image != nil {
			s.mu.Unlock()
			return nil, image, nil
		}
		busy := s.unpack[d]
		if busy == nil {
			busy = make(chan struct{})
			s.unpack[d] = busy
			s.mu.Unlock()
			return func() {
				s.mu.Lock()
				delete(s.unpack, d)
				s.mu.Unlock()
				close(busy)
			}, nil, nil
		}
		s.mu.Unlock()
		select {
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		case <-busy:
		}
	}
}

func (s *Images) load(ctx context.Context, c *client.Client, record images.Image) (*Image, error) {
	image := client.NewImage(c, record)
	unpacked, err := image.IsUnpacked(ctx, Snapshotter)
	if err == nil && !unpacked {
		err = image.Unpack(ctx, Snapshotter)
	}
	if err != nil {
		return nil, Error(err, "unpack image %s", record.Name)
	}
	layers, err := image.RootFS(ctx)
	if err != nil {
		return nil, Error(err, "layers of image %s", record.Name)
	}
	spec, err := image.Spec(ctx)
	if err != nil {
		return nil, Error(err, "configuration of image %s", record.Name)
	}
	size, err := image.Size(ctx)
	if err != nil {
		return nil, Error(err, "size of image %s", record.Name)
	}
	return &Image{
		Ref:       Canonical(record.Name, record.Target.Digest),
		Digest:    record.Target.Digest,
		Config:    spec.Config,
		ChainID:   identity.ChainID(layers).String(),
		Size:      size,
		Labels:    record.Labels,
		CreatedAt: record.CreatedAt,
	}, nil
}

// Keep gives an image a further name, followed by its digest, and returns that reference. The image stays until it is
// deleted under each of its names.
func (s *Images) Keep(ctx context.Context, ref, name string) (string, error) {
	c, err := s.daemon.Client()
	if err != nil {
		return "", err
	}
	record, err := s.record(ctx, c, ref)
	if err != nil {
		return "", err
	}
	return s.put(ctx, c.ImageService(), Canonical(name, record.Target.Digest), record.Target, record.Labels)
}

// Forget makes the next Resolve read the image again. It is for a resolved
// image whose snapshot turned out to be gone.
func (s *Images) Forget(d digest.Digest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.resolved, d)
}

// Record is the record of an image.
type Record struct {
	Ref       string
	Digest    digest.Digest
	Labels    map[string]string
	CreatedAt time.Time
}

// Content returns the store that has the contents of an image, which is found
// by its exact name, name@digest. NotFound if there is no such image.
func (s *Images) Content(ctx context.Context, ref string) (content.Store, error) {
	c, err := s.daemon.Client()
	if err != nil {
		return nil, err
	}
	record, err := c.ImageService().Get(ctx, ref)
	if err != nil {
		return nil, Error(err, "image %s", ref)
	}
	if record.Target.Digest != digestOf(ref) {
		return nil, errs.New(errs.NotFound, "image %s is %s", ref, record.Target.Digest)
	}
	return c.ContentStore(), nil
}

// Manifest returns the manifest of an image for this machine's platform, and the
// store that has its content. ref is the exact name, name@digest, of the image.
func (s *Images) Manifest(ctx context.Context, ref string) (content.Store, ocispec.Descriptor, error) {
	none := ocispec.Descriptor{}
	store, err := s.Content(ctx, ref)
	if err != nil {
		return nil, none, err
	}
	desc, err := describe(ctx, store, digestOf(ref))
	if err != nil {
		return nil, none, Error(err, "manifest of image %s", ref)
	}
	children := images.FilterPlatforms(images.ChildrenHandler(store), platforms.Default())
	best := images.LimitManifests(children, platforms.Default(), 1)
	for images.IsIndexType(desc.MediaType) {
		list, err := best(ctx, desc)
		if err == nil && len(list) == 0 {
			err = errdefs.ErrNotFound
		}
		if err != nil {
			return nil, none, Error(err, "manifest of image %s for this machine", ref)
		}
		desc = list[0]
	}
	return store, desc, nil
}

// List returns the records of the images that have all of the labels.
func (s *Images) List(ctx context.Context, labels map[string]string) ([]Record, error) {
	c, err := s.daemon.Client()
	if err != nil {
		return nil, err
	}
	all, err := c.ImageService().List(ctx)
	if err != nil {
		return nil, Error(err, "list images")
	}
	var out []Record
	for _, i := range all {
		match := true
		for k, v := range labels {
			match = match && i.Labels[k] == v
		}
		if match {
			out = append(out, Record{Ref: i.Name, Digest: i.Target.Digest, Labels: i.Labels, CreatedAt: i.CreatedAt})
		}
	}
	return out, nil
}

// Usage returns the bytes of disk that an image uses, compressed and unpacked. Content that it shares with other images counts too.
// ref is the exact name, name@digest, of the image.
func (s *Images) Usage(ctx context.Context, ref string) (int64, error) {
	c, err := s.daemon.Client()
	if err != nil {
		return 0, err
	}
	image, err := c.GetImage(ctx, ref)
	if err != nil {
		return 0, Error(err, "image %s", ref)
	}
	n, err := image.Usage(ctx, client.WithSnapshotUsage())
	if err != nil {
		return 0, Error(err, "disk use of image %s", ref)
	}
	return n, nil
}

// Delete removes the record of an image. containerd deletes its content when
// nothing else, such as another name, refers to it. It returns nil if there is
// no record.
func (s *Images) Delete(ctx context.Context, ref string) error {
	c, err := s.daemon.Client()
	if err != nil {
		return err
	}
	s.mu.Lock()
	// Under another name it is still the same image.
	if image := s.resolved[digestOf(ref)]; image != nil && image.Ref == ref {
		delete(s.resolved, image.Digest)
	}
	s.mu.Unlock()
	if err := c.ImageService().Delete(ctx, ref); err != nil && !errdefs.IsNotFound(err) {
		return Error(err, "delete image %s", ref)
	}
	return nil
}
