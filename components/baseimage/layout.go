package baseimage

import (
	"archive/tar"
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"miren.dev/runtime/pkg/errs"
)

// epoch is the time of every file in images, so that the same recipe and
// packages give the same bytes.
var epoch = time.Unix(1700000000, 0).UTC()

// builder writes one image layout.
type builder struct {
	store    *Store
	recipe   *recipe
	dir      string // directory of the layout
	scratch  string // scratch directory of the recipe; removed afterwards
	progress func(string)

	layers  []ocispec.Descriptor
	diffIDs []digest.Digest
	env     []string
}

func (b *builder) blob(d digest.Digest) string {
	return filepath.Join(b.dir, "blobs", "sha256", d.Encoded())
}

// begin makes the directories and copies the parent's layers.
func (b *builder) begin(parent *Image) error {
	for _, dir := range []string{filepath.Join(b.dir, "blobs", "sha256"), b.scratch} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	if parent == nil {
		return nil
	}
	_, c, err := parent.read()
	if err != nil {
		return err
	}
	b.env = c.Config.Env
	return b.takeLayers(parent, 0)
}

// takeLayers adds the layers of another image, except the first ones.
func (b *builder) takeLayers(from *Image, skip int) error {
	m, c, err := from.read()
	if err != nil {
		return err
	}
	for _, l := range m.Layers[skip:] {
		err := os.Link(filepath.Join(from.Dir, "blobs", "sha256", l.Digest.Encoded()), b.blob(l.Digest))
		if err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	b.layers = append(b.layers, m.Layers[skip:]...)
	b.diffIDs = append(b.diffIDs, c.RootFS.DiffIDs[skip:]...)
	return nil
}

// layersAbove adds what an image has on top of its parent.
func (b *builder) layersAbove(img, parent *Image) error {
	m, _, err := parent.read()
	if err != nil {
		return err
	}
	return b.takeLayers(img, len(m.Layers))
}

// dropLayer takes the last layer away again; its file stays.
func (b *builder) dropLayer() ocispec.Descriptor {
	last := len(b.layers) - 1
	l := b.layers[last]
	b.layers, b.diffIDs = b.layers[:last], b.diffIDs[:last]
	return l
}

// read returns manifest and configuration of an image.
func (i *Image) read() (m ocispec.Manifest, c ocispec.Image, err error) {
	get := func(d digest.Digest, v any) error {
		b, err := os.ReadFile(filepath.Join(i.Dir, "blobs", "sha256", d.Encoded()))
		if err != nil {
			return err
		}
		return json.Unmarshal(b, v)
	}
	if err = get(digest.Digest(i.Digest), &m); err == nil {
		err = get(m.Config.Digest, &c)
	}
	return m, c, err
}

// WriteArchive writes the image as an OCI archive, a tar stream of its layout.
func (i *Image) WriteArchive(w io.Writer) error {
	tw := tar.NewWriter(w)
	if err := tw.AddFS(os.DirFS(i.Dir)); err != nil {
		return errs.New(errs.Unavailable, "read image %s: %w", i.Dir, err)
	}
	return tw.Close()
}

// layer adds the tar stream that write produces as the next layer.
func (b *builder) layer(write func(*tar.Writer) error) error {
	f, err := os.CreateTemp(b.dir, "layer-")
	if err != nil {
		return err
	}
	defer f.Close()
	defer os.Remove(f.Name())
	compressed := &hashingWriter{w: bufio.NewWriterSize(f, 1<<20), h: sha256.New()}
	z, err := zstd.NewWriter(compressed, zstd.WithEncoderLevel(zstd.SpeedDefault), zstd.WithEncoderConcurrency(runtime.GOMAXPROCS(0)))
	if err != nil {
		return err
	}
	plain := &hashingWriter{w: z, h: sha256.New()}
	tw := tar.NewWriter(plain)
	if err := write(tw); err != nil {
		return err
	}
	if err := tw.Close(); err != nil {
		return err
	}
	if err := z.Close(); err != nil {
		return err
	}
	if err := compressed.w.(*bufio.Writer).Flush(); err != nil {
		return err
	}
	if err := f.Chmod(0o644); err != nil {
		return err
	}
	d := compressed.digest()
	// Not with atomicfile: the whole layout is synced before it gets its place.
	if err := os.Rename(f.Name(), b.blob(d)); err != nil {
		return err
	}
	b.layers = append(b.layers, ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayerZstd, Digest: d, Size: compressed.n})
	b.diffIDs = append(b.diffIDs, plain.digest())
	return nil
}

// finish writes configuration, manifest and index.
func (b *builder) finish() error {
	r := b.recipe
	created := epoch
	config := ocispec.Image{
		Created:  &created,
		Platform: ocispec.Platform{Architecture: runtime.GOARCH, OS: "linux"},
		Config: ocispec.ImageConfig{
			User: r.user, Env: mergeEnv(b.env, r.env), WorkingDir: r.workdir, Cmd: r.cmd,
			Labels: map[string]string{"dev.miren.runtime.base": r.name + " " + r.version},
		},
		RootFS: ocispec.RootFS{Type: "layers", DiffIDs: b.diffIDs},
	}
	for range b.layers {
		config.History = append(config.History, ocispec.History{Created: &created, CreatedBy: "runtime base image " + r.name})
	}
	c, err := b.json(ocispec.MediaTypeImageConfig, config)
	if err != nil {
		return err
	}
	m, err := b.json(ocispec.MediaTypeImageManifest, ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest, Config: c, Layers: b.layers,
	})
	if err != nil {
		return err
	}
	return writeLayout(b.dir, m)
}

// imageLayout is the file oci-layout.
const imageLayout = `{"imageLayoutVersion":"1.0.0"}`

// writeLayout makes a folder with blobs the layout of one image.
func writeLayout(dir string, manifest ocispec.Descriptor) error {
	index, err := json.Marshal(ocispec.Index{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex, Manifests: []ocispec.Descriptor{manifest},
	})
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, ocispec.ImageLayoutFile), []byte(imageLayout), 0o644); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, ocispec.ImageIndexFile), index, 0o644)
}

func (b *builder) json(mediaType string, v any) (ocispec.Descriptor, error) {
	raw, err := json.Marshal(v)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	d := digest.FromBytes(raw)
	return ocispec.Descriptor{MediaType: mediaType, Digest: d, Size: int64(len(raw))}, os.WriteFile(b.blob(d), raw, 0o644)
}

// mergeEnv is base with the variables of more set.
func mergeEnv(base, more []string) []string {
	out := slices.Clone(base)
	for _, v := range more {
		i := slices.IndexFunc(out, func(o string) bool { return envName(o) == envName(v) })
		if i < 0 {
			out = append(out, v)
		} else {
			out[i] = v
		}
	}
	return out
}

func envName(s string) string {
	for i := range len(s) {
		if s[i] == '=' {
			return s[:i]
		}
	}
	return s
}

type hashingWriter struct {
	w io.Writer
	h hash.Hash
	n int64
}

func (w *hashingWriter) Write(p []byte) (int, error) {
	n, err := w.w.Write(p)
	w.h.Write(p[:n])
	w.n += int64(n)
	return n, err
}

func (w *hashingWriter) digest() digest.Digest {
	return digest.NewDigestFromEncoded(digest.SHA256, hex.EncodeToString(w.h.Sum(nil)))
}

// put adds a regular file that root owns to a layer.
func put(tw *tar.Writer, name string, mode int64, size int64, r io.Reader) error {
	h := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode, Size: size, ModTime: epoch, Format: tar.FormatPAX}
	if err := tw.WriteHeader(h); err != nil {
		return err
	}
	if n, err := io.Copy(tw, r); err != nil || n != size {
		return fmt.Errorf("write %s: %d of %d bytes: %w", name, n, size, err)
	}
	return nil
}

// putFile adds a file of this machine.
func putFile(tw *tar.Writer, name string, mode int64, file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	return put(tw, name, mode, info.Size(), f)
}

// putDir and putLink add a directory and a symbolic link.
func putDir(tw *tar.Writer, name string, mode int64) error {
	return tw.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: mode, ModTime: epoch, Format: tar.FormatPAX})
}

// putHome writes the home directory of the user that apps run as, to whom it belongs.
func putHome(tw *tar.Writer) error {
	return tw.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: "home/" + userName + "/", Mode: 0o755,
		Uid: userID, Gid: userID, ModTime: epoch, Format: tar.FormatPAX})
}

func putLink(tw *tar.Writer, name, target string) error {
	return tw.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target, Mode: 0o777, ModTime: epoch, Format: tar.FormatPAX})
}
