package executiontest

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"miren.dev/runtime/testsupport/checkout"
)

// Image returns an OCI archive of a small image: the program in guest/ as
// /bin/guest and as entrypoint, users root and app (1000), and an environment
// variable FROM=image. It is built from source, so that no test needs a registry.
func Image(t testing.TB) []byte {
	t.Helper()
	binary, err := os.ReadFile(Program(t))
	if err != nil {
		t.Fatal(err)
	}
	layer := pack(t, []file{
		{name: "bin/", mode: 0o755},
		{name: "bin/guest", mode: 0o755, content: binary},
		{name: "etc/", mode: 0o755},
		{name: "etc/passwd", mode: 0o644, content: []byte("root:x:0:0:root:/root:/bin/guest\napp:x:1000:1000::/home/app:/bin/guest\n")},
		{name: "etc/group", mode: 0o644, content: []byte("root:x:0:\napp:x:1000:\n")},
		{name: "home/", mode: 0o755},
		{name: "home/app/", mode: 0o755, owner: 1000},
		{name: "root/", mode: 0o700},
		{name: "tmp/", mode: 0o1777},
	})
	return archive(t, layer, Config())
}

// Config is the configuration of Image.
func Config() ocispec.ImageConfig {
	return ocispec.ImageConfig{
		Entrypoint: []string{"/bin/guest"},
		Cmd:        []string{"sleep"},
		Env:        []string{"PATH=/bin", "FROM=image"},
		WorkingDir: "/home/app",
	}
}

// ImageOf returns an OCI archive of an image with these programs alone.
func ImageOf(t testing.TB, programs map[string][]byte) []byte {
	t.Helper()
	var files []file
	for name, content := range programs {
		files = append(files, file{name: name, mode: 0o755, content: content})
	}
	return archive(t, pack(t, files), ocispec.ImageConfig{})
}

// archive returns an OCI archive of an image with one layer.
func archive(t testing.TB, layer []byte, c ocispec.ImageConfig) []byte {
	t.Helper()
	config := encode(t, ocispec.Image{
		Platform: ocispec.Platform{Architecture: runtime.GOARCH, OS: "linux"},
		Config:   c,
		RootFS:   ocispec.RootFS{Type: "layers", DiffIDs: []digest.Digest{digest.FromBytes(layer)}},
	})
	manifest := encode(t, ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2},
		MediaType: ocispec.MediaTypeImageManifest,
		Config:    describe(ocispec.MediaTypeImageConfig, config),
		Layers:    []ocispec.Descriptor{describe(ocispec.MediaTypeImageLayer, layer)},
	})
	index := encode(t, ocispec.Index{
		Versioned: specs.Versioned{SchemaVersion: 2},
		MediaType: ocispec.MediaTypeImageIndex,
		Manifests: []ocispec.Descriptor{describe(ocispec.MediaTypeImageManifest, manifest)},
	})
	files := []file{
		{name: ocispec.ImageLayoutFile, mode: 0o644, content: encode(t, ocispec.ImageLayout{Version: ocispec.ImageLayoutVersion})},
		{name: ocispec.ImageIndexFile, mode: 0o644, content: index},
	}
	for _, b := range [][]byte{layer, config, manifest} {
		files = append(files, file{name: fmt.Sprintf("blobs/sha256/%s", digest.FromBytes(b).Encoded()), mode: 0o644, content: b})
	}
	return pack(t, files)
}

// Program builds the program in guest/ and returns its path.
func Program(t testing.TB) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "guest")
	build := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", program, "./guest")
	build.Dir = filepath.Join(checkout.Root(t), "testsupport", "executiontest")
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the guest program: %v\n%s", err, out)
	}
	return program
}

type file struct {
	name    string // a directory ends in a slash
	mode    int64
	owner   int
	content []byte
}

func pack(t testing.TB, files []file) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range files {
		h := &tar.Header{Name: f.name, Mode: f.mode, Uid: f.owner, Gid: f.owner, Size: int64(len(f.content)), Typeflag: tar.TypeReg}
		if f.name[len(f.name)-1] == '/' {
			h.Typeflag = tar.TypeDir
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(f.content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func describe(mediaType string, b []byte) ocispec.Descriptor {
	return ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(b), Size: int64(len(b))}
}

func encode(t testing.TB, v any) []byte {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
