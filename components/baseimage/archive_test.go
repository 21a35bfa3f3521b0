package baseimage

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"miren.dev/runtime/pkg/errs"
)

// otherSources replaces the package sources of the machine for the test.
func otherSources(t *testing.T, source string) {
	t.Helper()
	changed := *must(readHost())(t)
	changed.sources = []string{"deb " + source + " " + changed.codename + " main"}
	before := readHost
	t.Cleanup(func() { readHost = before })
	readHost = func() (*host, error) { return &changed, nil }
}

// fill makes images as debian and c make them, with one file for each layer.
func fill(t *testing.T, s *Store) (dirs []string) {
	t.Helper()
	for _, ref := range []Ref{{Name: "debian"}, {Name: "c"}} {
		r := must(s.recipe(t.Context(), ref))(t)
		for q := r; q != nil; q = q.parent {
			text := q.name
			q.make = func(_ context.Context, b *builder) error {
				return b.layer(func(tw *tar.Writer) error { return put(tw, text, 0o644, 4, strings.NewReader("text")) })
			}
		}
		dirs = append(dirs, must(s.ensure(t.Context(), r, func(string) {}))(t).Dir)
	}
	return dirs
}

// folders are the images in a store, and anything that is none.
func folders(t *testing.T, s *Store) (names []string) {
	t.Helper()
	for _, e := range must(os.ReadDir(s.cfg.Dir))(t) {
		if e.Name() != "locks" {
			names = append(names, e.Name())
		}
	}
	return names
}

// TestArchive: the images of one machine are those of another one with other package sources.
func TestArchive(t *testing.T) {
	quiet := func(string) {}
	from := New(Config{Dir: t.TempDir()})
	if _, err := from.Export(t.Context(), io.Discard, nil, quiet); !errs.Is(err, errs.NotFound) {
		t.Errorf("export of nothing: %v", err)
	}
	dirs := fill(t, from)
	from.keepVersions(map[string]versionList{"go": {Versions: []string{"1.26.11"}}})
	var archive bytes.Buffer
	sent := must(from.Export(t.Context(), &archive, nil, quiet))(t)
	if len(sent) != 2 || sent[0].Bytes == 0 {
		t.Fatalf("exported %+v", sent)
	}
	if one := must(from.Export(t.Context(), io.Discard, []string{"runtime/debian"}, quiet))(t); len(one) != 1 || one[0].Digest != sent[1].Digest {
		t.Errorf("exported by name %+v", one)
	}
	if _, err := from.Export(t.Context(), io.Discard, []string{"runtime/postgres"}, quiet); !errs.Is(err, errs.NotFound) {
		t.Errorf("export of an image that was not made: %v", err)
	}

	otherSources(t, "http://mirror.example.com/debian")
	to := New(Config{Dir: t.TempDir()})
	got := must(to.Import(t.Context(), bytes.NewReader(archive.Bytes()), quiet))(t)
	if len(got) != 2 || got[0].Kept || got[0].Other != "" || got[0].Digest != sent[0].Digest {
		t.Fatalf("imported %+v", got)
	}
	for i, ref := range []Ref{{Name: "c"}, {Name: "debian"}} {
		r := must(to.recipe(t.Context(), ref))(t)
		img := must(load(filepath.Join(to.cfg.Dir, r.dirName()), r))(t)
		if dir := dirs[1-i]; filepath.Base(img.Dir) == filepath.Base(dir) || content(t, img.Dir) != content(t, dir) {
			t.Errorf("%s in %s: %s, exported %s", ref, img.Dir, content(t, img.Dir), content(t, dir))
		}
	}
	if v := to.knownVersions()["go"].Versions; !slices.Equal(v, []string{"1.26.11"}) {
		t.Errorf("versions of go %v", v)
	}
	again := must(to.Import(t.Context(), bytes.NewReader(archive.Bytes()), quiet))(t)
	if len(again) != 2 || !again[0].Kept || !again[1].Kept {
		t.Errorf("imported again: %+v", again)
	}
	if names := folders(t, to); len(names) != 3 { // two images, versions.json
		t.Errorf("the store has %v", names)
	}
}

// content is what a folder has, for a comparison.
func content(t *testing.T, dir string) string {
	t.Helper()
	var all strings.Builder
	err := fs.WalkDir(os.DirFS(dir), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(filepath.Join(dir, name))
		all.WriteString(name + " " + string(b) + "\n")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all.String()
}

// TestArchiveOfOthers: images that this machine makes in another way are left out, and say why.
func TestArchiveOfOthers(t *testing.T) {
	from := New(Config{Dir: t.TempDir()})
	fill(t, from)
	var archive bytes.Buffer
	must(from.Export(t.Context(), &archive, nil, func(string) {}))(t)
	changed := *must(readHost())(t)
	changed.id, changed.codename = "ubuntu", "noble"
	before := readHost
	t.Cleanup(func() { readHost = before })
	readHost = func() (*host, error) { return &changed, nil }
	to := New(Config{Dir: t.TempDir()})
	for _, a := range must(to.Import(t.Context(), &archive, func(string) {}))(t) {
		if a.Other == "" || a.Kept {
			t.Errorf("%+v", a)
		}
	}
	if names := folders(t, to); len(names) != 0 {
		t.Errorf("the store has %v", names)
	}
}

// TestDamagedArchive: nothing appears of an archive that is damaged or cut off anywhere, or is none.
func TestDamagedArchive(t *testing.T) {
	from := New(Config{Dir: t.TempDir()})
	fill(t, from)
	var archive bytes.Buffer
	must(from.Export(t.Context(), &archive, nil, func(string) {}))(t)
	whole := archive.Bytes()
	otherSources(t, "http://mirror.example.com/debian")
	to := New(Config{Dir: t.TempDir()})
	refused := func(what string, b []byte) {
		t.Helper()
		if list, err := to.Import(t.Context(), bytes.NewReader(b), func(string) {}); !errs.Is(err, errs.InvalidArgument) {
			t.Errorf("%s: %+v, %v", what, list, err)
		}
		if names := folders(t, to); len(names) != 0 {
			t.Fatalf("%s: the store has %v", what, names)
		}
	}
	// The last bytes are the end of the archive, which may lack.
	for n := 0; n < len(whole)-1024-512; n += 257 {
		refused("cut off", whole[:n])
	}
	tr := tar.NewReader(bytes.NewReader(whole))
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(h.Name, "blobs/") {
			continue
		}
		body := must(io.ReadAll(tr))(t)
		bad := bytes.Clone(whole)
		bad[bytes.Index(bad, body)] ^= 1
		refused("a changed "+h.Name, bad)
	}
	refused("no archive", []byte(strings.Repeat("text", 1000)))
	refused("another file", tarOf(t, map[string]string{"../../etc/passwd": "x"}))
	refused("an index without blobs", tarOf(t, map[string]string{"index.json": `{"manifests":[{"digest":"sha256:` + strings.Repeat("a", 64) + `"}]}`}))
	refused("a digest that is a path", tarOf(t, map[string]string{"index.json": `{"manifests":[{"digest":"sha256:../../x"}]}`}))
}

func tarOf(t *testing.T, files map[string]string) []byte {
	t.Helper()
	var b bytes.Buffer
	tw := tar.NewWriter(&b)
	for name, text := range files {
		if err := put(tw, name, 0o644, int64(len(text)), strings.NewReader(text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestImportIsKilled: what a killed import left is in the way of nothing, and goes with the next one.
func TestImportIsKilled(t *testing.T) {
	from := New(Config{Dir: t.TempDir()})
	fill(t, from)
	var archive bytes.Buffer
	must(from.Export(t.Context(), &archive, nil, func(string) {}))(t)
	otherSources(t, "http://mirror.example.com/debian")
	to := New(Config{Dir: t.TempDir()})
	left := filepath.Join(to.cfg.Dir, ".tmp-import-1")
	if err := os.MkdirAll(filepath.Join(left, "image-0"), 0o755); err != nil {
		t.Fatal(err)
	}
	// It ended between two images: the next one adds the other.
	ctx, cancel := context.WithCancel(t.Context())
	blobs := 0
	if _, err := to.Import(ctx, bytes.NewReader(archive.Bytes()), func(string) {
		if blobs++; blobs == 2 {
			cancel()
		}
	}); !errors.Is(err, context.Canceled) {
		t.Fatalf("an import that was cancelled: %v", err)
	}
	if _, err := os.Stat(left); err == nil || len(folders(t, to)) != 0 {
		t.Errorf("the store has %v", folders(t, to))
	}
	if list := must(to.Import(t.Context(), &archive, func(string) {}))(t); len(list) != 2 || list[0].Kept || list[1].Kept {
		t.Errorf("imported %+v", list)
	}
}

// TestNamesOfReleaseData: this machine knows every image that hack/release-data.sh names, and it names all
// packaged ones.
func TestNamesOfReleaseData(t *testing.T) {
	script := string(must(os.ReadFile("../../hack/release-data.sh"))(t))
	_, list, ok := strings.Cut(script, "\tset -- ")
	list, _, _ = strings.Cut(list, "\n")
	before, braces, _ := strings.Cut(strings.TrimSuffix(list, "}"), "runtime/{")
	names := strings.Fields(before)
	for name := range strings.SplitSeq(braces, ",") {
		names = append(names, Prefix+name)
	}
	if !ok || len(names) < 10 {
		t.Fatalf("the script names %q", names)
	}
	for _, name := range names {
		if _, err := Lookup(name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, p := range packagedImages {
		if !slices.Contains(names, Prefix+p.name) {
			t.Errorf("the script lacks %s", p.name)
		}
	}
}
