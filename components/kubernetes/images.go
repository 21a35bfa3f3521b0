package kubernetes

import (
	"context"
	"path/filepath"
	"strings"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"miren.dev/runtime/components/containerd"
	"miren.dev/runtime/components/registry"
)

// Store is the image store of the installation.
type Store interface {
	Resolve(ctx context.Context, ref string) (*containerd.Image, error)
	Manifest(ctx context.Context, ref string) (content.Store, ocispec.Descriptor, error)
}

// Pushed are the images of a store, which it pushes to a registry.
type Pushed struct {
	Store    Store
	Registry *registry.Registry
	BinDir   string // has runtime-agent
}

var _ Images = Pushed{}

// Image pushes an image, unless the registry has it.
func (p Pushed) Image(ctx context.Context, ref string) (Image, error) {
	im, err := p.Store.Resolve(ctx, ref)
	if err != nil {
		return Image{}, err
	}
	store, manifest, err := p.Store.Manifest(ctx, im.Ref)
	if err != nil {
		return Image{}, err
	}
	name, err := p.Registry.Push(ctx, store, manifest)
	return Image{Ref: name, Config: im.Config}, err
}

// Agent pushes an image with the agent of this installation.
func (p Pushed) Agent(ctx context.Context) (string, error) {
	store, manifest, err := registry.ProgramImage(filepath.Join(p.BinDir, "runtime-agent"), "runtime-agent")
	if err != nil {
		return "", err
	}
	return p.Registry.Push(ctx, store, manifest)
}

// Forget makes the next use of an image look for it in the registry.
func (p Pushed) Forget(ref string) {
	if _, d, ok := strings.Cut(ref, "@"); ok {
		p.Registry.Forget(digest.Digest(d))
	}
}
