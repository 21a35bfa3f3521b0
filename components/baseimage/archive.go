package baseimage

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"miren.dev/runtime/pkg/atomicfile"
	"miren.dev/runtime/pkg/errs"
)

// An archive of images is the tar stream of one OCI image layout, which other tools read too:
//
//	oci-layout
//	index.json         the images; annotations say what they were made from
//	blobs/sha256/...   each once, in the order of the images
//
// The folder of an image here has a key that depends on the package sources of the machine. The
// recipe in an archive does not, so another machine finds the images under the keys of its own.
const (
	annotationImage    = "dev.miren.runtime.image"    // the Ref, in JSON
	annotationRecipe   = "dev.miren.runtime.recipe"   // recipe.anywhere
	annotationVersions = "dev.miren.runtime.versions" // of the index: versions.json
)

// maxArchiveIndex bounds index.json of an archive, in bytes.
const maxArchiveIndex = 4 << 20

// importName is the name of the lock of an import.
const importName = "import"

// Archived is an image in an archive.
type Archived struct {
	Image  string `json:"image"` // "go 1.26.11"
	Digest string `json:"digest"`
	Bytes  int64  `json:"bytes"`           // of its blobs, compressed; images share some of them
	Kept   bool   `json:"kept,omitempty"`  // this machine had the image, and keeps its own
	Other  string `json:"other,omitempty"` // why this machine has no use for it; empty if it has
}

// archived is an image in an archive with what it takes to read or write it.
type archived struct {
	Archived
	ref      Ref
	manifest ocispec.Descriptor
	blobs    []ocispec.Descriptor // manifest, configuration, layers
}

// Export writes images of packages that exist, so that another machine needs no registry for them:
// those of names in Dockerfiles, or without names all that are current. It makes none: NotFound.
// progress gets a line for each blob.
func (s *Store) Export(ctx context.Context, w io.Writer, names []string, progress func(string)) ([]Archived, error) {
	images, err := s.chosen(ctx, names)
	if err != nil {
		return nil, err
	}
	index := ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex}
	var list []Archived
	var blobs []string
	written := map[digest.Digest]bool{}
	for _, e := range images {
		img, err := load(e.dir, e.recipe)
		if err != nil {
			return nil, err
		}
		a, err := img.archived()
		if err != nil {
			return nil, errs.New(errs.Corrupt, "image %s: %w", e.dir, err).WithHint("remove the directory; it is made again")
		}
		name, err := json.Marshal(e.ref)
		if err != nil {
			return nil, err
		}
		a.manifest.Annotations = map[string]string{
			ocispec.AnnotationRefName: Prefix + e.recipe.name + ":" + e.recipe.version,
			annotationImage:           string(name), annotationRecipe: e.recipe.anywhere(),
		}
		a.manifest.Platform = &ocispec.Platform{Architecture: runtime.GOARCH, OS: "linux"}
		index.Manifests = append(index.Manifests, a.manifest)
		for _, b := range a.blobs {
			if !written[b.Digest] {
				written[b.Digest] = true
				blobs = append(blobs, filepath.Join(e.dir, "blobs", "sha256", b.Digest.Encoded()))
			}
		}
		a.Image = e.ref.String()
		list = append(list, a.Archived)
	}
	if b, err := os.ReadFile(s.versionsFile()); err == nil {
		index.Annotations = map[string]string{annotationVersions: string(b)}
	}
	raw, err := json.Marshal(index)
	if err != nil {
		return nil, err
	}
	tw := tar.NewWriter(w)
	err = errors.Join(put(tw, ocispec.ImageLayoutFile, 0o644, int64(len(imageLayout)), bytes.NewReader([]byte(imageLayout))),
		put(tw, ocispec.ImageIndexFile, 0o644, int64(len(raw)), bytes.NewReader(raw)))
	for _, file := range blobs {
		if err == nil {
			err = ctx.Err()
		}
		if err == nil {
			progress("blob " + filepath.Base(file)[:12])
			err = putFile(tw, path.Join("blobs", "sha256", filepath.Base(file)), 0o644, file)
		}
	}
	if err == nil {
		err = tw.Close()
	}
	return list, errs.Wrap(err, "write the archive")
}

// chosen returns the images of names, or without names all.
func (s *Store) chosen(ctx context.Context, names []string) (images []existing, err error) {
	if len(names) == 0 {
		if images, err = s.existing(ctx); err == nil && len(images) == 0 {
			err = errs.New(errs.NotFound, "%s has no images of packages", s.cfg.Dir).
				WithHint("build an app or create a sandbox first; each makes the images that it needs")
		}
		return images, err
	}
	for _, name := range names {
		ref, err := Lookup(name)
		if err != nil {
			return nil, err
		}
		r, err := s.recipe(ctx, ref)
		if err != nil {
			return nil, errs.Wrap(err, "image %s", name)
		}
		e := existing{ref: ref, recipe: r, dir: filepath.Join(s.cfg.Dir, r.dirName())}
		if _, err := os.Stat(filepath.Join(e.dir, ocispec.ImageIndexFile)); err != nil {
			return nil, errs.New(errs.NotFound, "image %s was not made on this machine", name).
				WithHint("build an app of it first, or leave the name away: all images that exist are written then")
		}
		images = append(images, e)
	}
	return images, nil
}

// archived describes the image as one of an archive.
func (i *Image) archived() (a archived, err error) {
	d := digest.Digest(i.Digest)
	info, err := os.Stat(filepath.Join(i.Dir, "blobs", "sha256", d.Encoded()))
	if err != nil {
		return a, err
	}
	a.manifest = ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: d, Size: info.Size()}
	m, _, err := i.read()
	a.describe(m)
	return a, err
}

// describe sets what the manifest says.
func (a *archived) describe(m ocispec.Manifest) {
	a.Digest = a.manifest.Digest.String()
	a.blobs = append([]ocispec.Descriptor{a.manifest, m.Config}, m.Layers...)
	for _, b := range a.blobs {
		a.Bytes += b.Size
	}
}

// Import reads an archive of Export. It reads and verifies all of it before the first image appears.
// Images for which this machine has other recipes, such as those of another version of the system or
// of another distribution, are left out; images that exist are kept. A killed import leaves whole
// images only. InvalidArgument: this is no such archive, or it is damaged.
func (s *Store) Import(ctx context.Context, r io.Reader, progress func(string)) ([]Archived, error) {
	if err := os.MkdirAll(filepath.Join(s.cfg.Dir, locksDir), 0o755); err != nil {
		return nil, errs.New(errs.FailedPrecondition, "image cache: %w", err)
	}
	unlock, err := lock(ctx, filepath.Join(s.cfg.Dir, locksDir, importName), func() { progress("waiting for another import") })
	if err != nil {
		return nil, err
	}
	defer unlock()
	tmp, err := s.scratch(importName)
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(tmp)
	index, err := extractArchive(ctx, r, tmp, progress)
	if err != nil {
		return nil, err
	}
	images, err := verified(index, tmp)
	if err != nil {
		return nil, err
	}
	s.learnVersions(index.Annotations[annotationVersions])
	list := []Archived{}
	for i, a := range images {
		if err := ctx.Err(); err != nil {
			return list, err
		}
		if err := s.place(ctx, &a, tmp, filepath.Join(tmp, fmt.Sprint("image-", i))); err != nil {
			return list, errs.Wrap(err, "image %s", a.Image)
		}
		list = append(list, a.Archived)
	}
	return list, nil
}

// extractArchive writes the blobs of an archive to dir, and returns its index.
func extractArchive(ctx context.Context, r io.Reader, dir string, progress func(string)) (*ocispec.Index, error) {
	damaged := func(format string, args ...any) error {
		return errs.New(errs.InvalidArgument, "the archive "+format, args...).
			WithHint("give an archive that `r server export-images` or `make release-data` wrote, and compare its checksum")
	}
	var index *ocispec.Index
	tr := tar.NewReader(r)
	for {
		h, err := tr.Next()
		switch {
		case errors.Is(err, io.EOF) && index != nil:
			return index, nil
		case errors.Is(err, io.EOF):
			return nil, damaged("has no %s", ocispec.ImageIndexFile)
		case err != nil:
			return nil, damaged("is damaged: %w", err)
		case ctx.Err() != nil:
			return nil, ctx.Err()
		}
		folder, name := path.Split(h.Name)
		d := digest.NewDigestFromEncoded(digest.SHA256, name)
		switch {
		case h.Typeflag != tar.TypeReg || h.Name == ocispec.ImageLayoutFile:
		case h.Name == ocispec.ImageIndexFile:
			if index = new(ocispec.Index); h.Size > maxArchiveIndex || json.NewDecoder(tr).Decode(index) != nil {
				return nil, damaged("has an %s that is none", h.Name)
			}
		case folder == "blobs/sha256/" && d.Validate() == nil:
			progress("blob " + name[:12])
			switch err := extractBlob(tr, filepath.Join(dir, name), d); {
			case errors.Is(err, errBlob):
				return nil, damaged("is damaged: %s has another content", h.Name)
			case errors.Is(err, os.ErrExist):
				return nil, damaged("has %s twice", h.Name)
			case err != nil:
				return nil, errs.New(errs.FailedPrecondition, "image cache: %w", err)
			}
		default:
			return nil, damaged("has the file %q, which is none of an image", h.Name)
		}
	}
}

var errBlob = errors.New("the blob has another digest")

// extractBlob writes a blob, and returns errBlob if it has not the digest.
func extractBlob(r io.Reader, file string, d digest.Digest) error {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	v := d.Verifier()
	if _, err := io.Copy(io.MultiWriter(f, v), r); err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) {
			return errBlob
		}
		return err
	}
	if !v.Verified() {
		return errBlob
	}
	return f.Close()
}

// verified returns the images of an archive, all blobs of which are in dir.
func verified(index *ocispec.Index, dir string) (images []archived, err error) {
	for _, d := range index.Manifests {
		a := archived{manifest: ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: d.Digest, Size: d.Size}}
		a.manifest.Annotations = d.Annotations
		var m ocispec.Manifest
		var raw []byte
		if err = d.Digest.Validate(); err == nil {
			raw, err = os.ReadFile(filepath.Join(dir, d.Digest.Encoded()))
		}
		if err == nil {
			err = json.Unmarshal(raw, &m)
		}
		if err == nil {
			err = json.Unmarshal([]byte(d.Annotations[annotationImage]), &a.ref)
		}
		if err != nil {
			return nil, errs.New(errs.InvalidArgument, "the archive has no whole image %s: %w", d.Annotations[ocispec.AnnotationRefName], err)
		}
		a.Image = a.ref.String()
		a.describe(m)
		for _, b := range a.blobs {
			var info os.FileInfo
			if err = b.Digest.Validate(); err == nil {
				info, err = os.Stat(filepath.Join(dir, b.Digest.Encoded()))
			}
			if err == nil && info.Size() != b.Size {
				err = errors.New("it has another length")
			}
			if err != nil {
				return nil, errs.New(errs.InvalidArgument, "the archive lacks blob %s of image %s: %w", b.Digest, a.Image, err)
			}
		}
		images = append(images, a)
	}
	return images, nil
}

// anywhere is a key of what the image is made from, besides the package sources of the machine.
func (r *recipe) anywhere() string {
	same := *r
	if r.parent == nil {
		same.inputs = nil // of a distribution: its sources, the settings of apt and the round
	} else {
		same.parent = &recipe{name: r.parent.anywhere()}
	}
	return same.key()
}

// place makes an image of blobs appear under the key of this machine. scratch does not exist.
func (s *Store) place(ctx context.Context, a *archived, blobs, scratch string) error {
	r, err := s.recipe(ctx, a.ref)
	switch {
	case err != nil:
		a.Other = err.Error()
		return nil
	case r.anywhere() != a.manifest.Annotations[annotationRecipe]:
		a.Other = fmt.Sprintf("this machine makes %s %s in another way", r.name, r.version)
		return nil
	}
	unlock, err := lock(ctx, filepath.Join(s.cfg.Dir, locksDir, r.dirName()), func() {})
	if err != nil {
		return err
	}
	defer unlock()
	dir := filepath.Join(s.cfg.Dir, r.dirName())
	if _, err := load(dir, r); !errors.Is(err, os.ErrNotExist) {
		a.Kept = err == nil
		return err
	}
	if err := os.RemoveAll(dir); err != nil { // an interrupted removal left it
		return errs.New(errs.FailedPrecondition, "image cache: %w", err)
	}
	m := a.manifest
	m.Annotations = nil
	err = os.MkdirAll(filepath.Join(scratch, "blobs", "sha256"), 0o755)
	for _, b := range a.blobs {
		if err == nil {
			err = os.Link(filepath.Join(blobs, b.Digest.Encoded()), filepath.Join(scratch, "blobs", "sha256", b.Digest.Encoded()))
		}
		if errors.Is(err, os.ErrExist) {
			err = nil // two layers with one content
		}
	}
	if err == nil {
		err = writeLayout(scratch, m)
	}
	if err == nil {
		err = atomicfile.SyncTree(scratch)
	}
	if err == nil {
		err = atomicfile.Rename(scratch, dir)
	}
	if err != nil {
		return errs.New(errs.FailedPrecondition, "keep image: %w", err)
	}
	return nil
}

// learnVersions takes the answers of registries from an archive where this machine has none, so that
// it needs no registry to choose a version.
func (s *Store) learnVersions(raw string) {
	var offered map[string]versionList
	if json.Unmarshal([]byte(raw), &offered) != nil {
		return // an archive without them
	}
	known := s.knownVersions()
	for product, v := range offered {
		if len(known[product].Versions) == 0 && !slices.Contains(v.Versions, "") {
			known[product] = v
		}
	}
	s.keepVersions(known)
}
