package source

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/testsupport/wait"
)

func newStore(t *testing.T) *Store {
	return NewStore(StoreConfig{Dir: filepath.Join(t.TempDir(), "sources")})
}

// upload brings a tree into a store as client and server do.
func upload(t *testing.T, tr *Tree, s *Store) (d Digest, sent int) {
	t.Helper()
	enc, err := tr.Manifest.Encode()
	if err != nil {
		t.Fatal(err)
	}
	d, missing, err := s.Missing(enc)
	if err != nil {
		t.Fatal(err)
	}
	var pack bytes.Buffer
	if err := tr.WritePack(t.Context(), &pack, missing, nil); err != nil {
		t.Fatal(err)
	}
	if sent, err = s.ReadPack(t.Context(), d, &pack); err != nil {
		t.Fatal(err)
	}
	return d, sent
}

func TestRoundTrip(t *testing.T) {
	dir := tree(t, map[string]string{
		"main.go": "package main\n", "cmd/run.sh": "#!/bin/sh\n", "empty": "", "same1": "same", "deep/er/same2": "same",
		"deep/link -> ../main.go": "", "here -> deep": "", "utf8/ü→": "x",
	})
	if err := os.Chmod(filepath.Join(dir, "cmd/run.sh"), 0o700); err != nil {
		t.Fatal(err)
	}
	tr := walk(t, dir, WalkOptions{})
	s := newStore(t)
	d, sent := upload(t, tr, s)
	if sent != 5 { // "same" once
		t.Errorf("%d contents were sent", sent)
	}
	if again, missing, err := s.Missing(mustEncode(t, tr.Manifest)); err != nil || again != d || len(missing) != 0 {
		t.Errorf("again: %s, missing %v, %v", again, missing, err)
	}
	out := filepath.Join(t.TempDir(), "out")
	if err := s.Materialize(t.Context(), d, out); err != nil {
		t.Fatal(err)
	}
	back := walk(t, out, WalkOptions{})
	if !reflect.DeepEqual(back.Manifest, tr.Manifest) {
		t.Errorf("got %+v\nwant %+v", back.Manifest, tr.Manifest)
	}
	dec, err := Decode(mustEncode(t, tr.Manifest), Limits{})
	if err != nil || !reflect.DeepEqual(dec, tr.Manifest) {
		t.Errorf("decode: %+v, %v", dec, err)
	}
	if info, err := os.Stat(filepath.Join(out, "cmd/run.sh")); err != nil || info.Mode() != 0o755 {
		t.Errorf("script: %v, %v", info, err)
	}
	// The same content has the same time wherever it is laid out.
	out2 := filepath.Join(t.TempDir(), "out2")
	if err := s.Materialize(t.Context(), d, out2); err != nil {
		t.Fatal(err)
	}
	for _, f := range []string{"main.go", "cmd/run.sh", "deep/link"} {
		a, err1 := os.Lstat(filepath.Join(out, f))
		b, err2 := os.Lstat(filepath.Join(out2, f))
		if err := errors.Join(err1, err2); err != nil || !a.ModTime().Equal(b.ModTime()) {
			t.Errorf("%s: times differ, or %v", f, err)
		}
	}
	if err := s.Materialize(t.Context(), d, out); !errors.Is(err, os.ErrExist) {
		t.Errorf("into what exists: %v", err)
	}
	if _, err := os.Stat(filepath.Join(out, "main.go")); err != nil {
		t.Errorf("the folder that existed was touched: %v", err)
	}
}

func mustEncode(t *testing.T, m *Manifest) []byte {
	t.Helper()
	b, err := m.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestOnlyChangesAreReadAndSent(t *testing.T) {
	dir := tree(t, map[string]string{"a": "1", "b": "2", "c/d": "3"})
	old := time.Now().Add(-time.Hour)
	for _, f := range []string{"a", "b", "c/d"} {
		if err := os.Chtimes(filepath.Join(dir, f), old, old); err != nil {
			t.Fatal(err)
		}
	}
	// The change time cannot be set: what was just written counts as racy until it is old enough.
	caches := t.TempDir()
	s := newStore(t)
	wait.For(t, "nothing is hashed again", func() bool {
		c := OpenCache(caches, dir)
		tr := walk(t, dir, WalkOptions{Cache: c})
		if err := c.Save(); err != nil {
			t.Fatal(err)
		}
		upload(t, tr, s)
		return tr.Hashed == 0
	})
	write(t, dir, map[string]string{"b": "changed"})
	tr := walk(t, dir, WalkOptions{Cache: OpenCache(caches, dir)})
	if tr.Hashed != 1 {
		t.Errorf("%d files were read after a change of one", tr.Hashed)
	}
	if _, sent := upload(t, tr, s); sent != 1 {
		t.Errorf("%d contents were sent after a change of one", sent)
	}
}

func TestWalkLimits(t *testing.T) {
	dir := tree(t, map[string]string{"a": "12345", "b": "12345", "c": "12345"})
	for name, l := range map[string]Limits{"files": {Files: 2}, "bytes": {Bytes: 14}, "one file": {FileBytes: 4}} {
		_, err := Walk(t.Context(), dir, WalkOptions{Limits: l})
		if !errs.Is(err, errs.ResourceExhausted) || errs.HintOf(err) == "" {
			t.Errorf("%s: %v (hint %q)", name, err, errs.HintOf(err))
		}
	}
	if _, err := Walk(t.Context(), dir, WalkOptions{Limits: Limits{Files: 3, Bytes: 15, FileBytes: 5}}); err != nil {
		t.Errorf("at the limits: %v", err)
	}
	if _, err := Walk(t.Context(), filepath.Join(dir, "no"), WalkOptions{}); !errs.Is(err, errs.NotFound) {
		t.Errorf("no folder: %v", err)
	}
	if _, err := Walk(t.Context(), filepath.Join(dir, "a"), WalkOptions{}); !errs.Is(err, errs.InvalidArgument) {
		t.Errorf("a file: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Walk(ctx, dir, WalkOptions{}); !errs.Is(err, errs.Canceled) {
		t.Errorf("canceled: %v", err)
	}
}

func TestWalkSkipsWhatCannotBeSource(t *testing.T) {
	secret := tree(t, map[string]string{"passwd": "root"})
	dir := tree(t, map[string]string{"a": "", "out -> " + secret: "", "up -> ../../etc/passwd": "", "trick -> a/../../x": "", "ok -> a": ""})
	if err := syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o644); err != nil {
		t.Fatal(err)
	}
	tr := walk(t, dir, WalkOptions{})
	if got := paths(tr.Manifest); !slices.Equal(got, []string{"a", "ok"}) {
		t.Errorf("got %q", got)
	}
	if len(tr.Skipped) != 4 {
		t.Errorf("skipped: %q", tr.Skipped)
	}
}

// Windows has no permission bits: a file's beginning says whether it is a program.
func TestWithoutModeBitsProgramsAreExecutable(t *testing.T) {
	dir := tree(t, map[string]string{"run.sh": "#!/bin/sh\necho\n", "elf": "\x7fELF\x02rest", "text": "text", "empty": "", "link -> text": ""})
	if err := os.Chmod(filepath.Join(dir, "text"), 0o755); err != nil {
		t.Fatal(err)
	}
	tr, err := walkFolder(t.Context(), dir, WalkOptions{}, false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tr.Close() })
	want := map[string]Mode{"run.sh": Executable, "elf": Executable, "text": Regular, "empty": Regular, "link": Symlink}
	for _, f := range tr.Manifest.Files {
		if f.Mode != want[f.Path] {
			t.Errorf("%s is %s, want %s", f.Path, f.Mode, want[f.Path])
		}
		if b, err := os.ReadFile(filepath.Join(dir, f.Path)); f.Mode != Symlink && (err != nil || f.Digest != digestOf(b)) {
			t.Errorf("%s has digest %s, want that of its whole content, %v", f.Path, f.Digest, err)
		}
	}
	if len(tr.Manifest.Files) != len(want) {
		t.Errorf("files: %v", tr.Manifest.Files)
	}
}

func TestHostileManifests(t *testing.T) {
	const d = `"sha256":"` + "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855" + `"`
	file := func(p string) string { return `{"path":"` + p + `","mode":"file",` + d + `}` }
	link := func(p, to string) string { return `{"path":"` + p + `","mode":"link","target":"` + to + `"}` }
	bad := map[string]string{
		"parent":                  file("../x"),
		"parent inside":           file("a/../../x"),
		"absolute":                file("/etc/passwd"),
		"dot":                     file("."),
		"empty":                   file(""),
		"dot inside":              file("a/./b"),
		"double slash":            file("a//b"),
		"trailing slash":          file("a/"),
		"NUL":                     file(`a\u0000b`),
		"version control":         file(".git/hooks/post-checkout"),
		"version control in case": file("sub/.GIT/config"),
		"long element":            file(strings.Repeat("x", 256)),
		"long path":               file(strings.Repeat("x/", 2500) + "x"),
		"twice":                   file("a") + "," + file("a"),
		"disorder":                file("b") + "," + file("a"),
		"file as folder":          file("a") + "," + file("a/b"),
		"file as folder, apart":   file("a") + "," + file("a-b") + "," + file("a/b"),
		"link as folder":          link("a", "b") + "," + file("a/b"),
		"link out":                link("a", "../x"),
		"link absolute":           link("a", "/etc"),
		"link out below":          link("a/b", "../../x"),
		"link down and out":       link("a", "b/../../x"),
		"link through a link":     link("a/m", "l/.."),
		"link into git":           link("a", ".git/config"),
		"link without target":     link("a", ""),
		"link with content":       `{"path":"a","mode":"link","target":"b","size":3}`,
		"file with target":        `{"path":"a","mode":"file","target":"b",` + d + `}`,
		"no digest":               `{"path":"a","mode":"file"}`,
		"digest as path":          `{"path":"a","mode":"file","sha256":"../../../../etc/passwd"}`,
		"digest in capitals":      `{"path":"a","mode":"file","sha256":"` + strings.Repeat("A", 64) + `"}`,
		"negative size":           `{"path":"a","mode":"file","size":-1,` + d + `}`,
		"huge size":               `{"path":"a","mode":"file","size":9223372036854775807,` + d + `}`,
		"sizes that overflow":     `{"path":"a","mode":"file","size":400000000,` + d + `},{"path":"b","mode":"file","size":1900000000,` + d + `}`,
		"mode":                    `{"path":"a","mode":"device",` + d + `}`,
		"unknown key":             `{"path":"a","mode":"file","uid":0,` + d + `}`,
	}
	s := newStore(t)
	for name, files := range bad {
		enc := []byte(`{"files":[` + files + `]}`)
		if _, err := Decode(enc, Limits{}); !errs.Is(err, errs.InvalidArgument) && !errs.Is(err, errs.ResourceExhausted) {
			t.Errorf("%s: %v", name, err)
		}
		if _, _, err := s.Missing(enc); err == nil {
			t.Errorf("%s: the store takes it", name)
		}
	}
	for name, text := range map[string]string{"empty": "", "not JSON": "x", "two": `{"files":[]}{"files":[]}`} {
		if _, err := Decode([]byte(text), Limits{}); !errs.Is(err, errs.InvalidArgument) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := s.Manifest("../../etc/passwd"); !errs.Is(err, errs.InvalidArgument) {
		t.Errorf("digest as path: %v", err)
	}
	if _, err := s.Manifest(digestOf(nil)); !errs.Is(err, errs.NotFound) {
		t.Errorf("unknown manifest: %v", err)
	}
}

// pack writes a pack of arbitrary contents.
func pack(t *testing.T, contents map[Digest]string) []byte {
	t.Helper()
	files := map[string]string{}
	tr := &Tree{paths: map[Digest]string{}}
	var all []Digest
	for d, text := range contents {
		files[string(d)] = text
		tr.paths[d] = string(d)
		all = append(all, d)
	}
	root, err := os.OpenRoot(tree(t, files))
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	tr.root = root
	var b bytes.Buffer
	if err := tr.WritePack(t.Context(), &b, all, nil); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestHostilePacks(t *testing.T) {
	s := newStore(t)
	good, other := digestOf([]byte("good")), digestOf([]byte("other"))
	m := &Manifest{Files: []File{{Path: "a", Mode: Regular, Size: 4, Digest: good}}}
	d, missing, err := s.Missing(mustEncode(t, m))
	if err != nil || len(missing) != 1 {
		t.Fatal(missing, err)
	}
	full := pack(t, map[Digest]string{good: "good"})
	for name, b := range map[string][]byte{
		"empty":         nil,
		"not a pack":    []byte("hello, this is not a pack"),
		"not asked for": pack(t, map[Digest]string{other: "other"}),
		"cut":           full[:len(full)-4],
		"cut early":     full[:12],
		"damaged":       append(bytes.Clone(full[:20]), append([]byte{full[20] ^ 0xff}, full[21:]...)...),
	} {
		if _, err := s.ReadPack(t.Context(), d, bytes.NewReader(b)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if err := s.Materialize(t.Context(), d, filepath.Join(t.TempDir(), "x")); err != nil && !errs.Is(err, errs.FailedPrecondition) {
		t.Errorf("incomplete: %v", err)
	}
	if n, err := s.ReadPack(t.Context(), d, bytes.NewReader(full)); err != nil || n != 1 {
		t.Errorf("the right one: %d, %v", n, err)
	}
	if err := s.put(other, 5, strings.NewReader("wrong")); !errs.Is(err, errs.InvalidArgument) {
		t.Errorf("wrong content: %v", err)
	}
	if err := s.put(other, 9, strings.NewReader("other")); !errs.Is(err, errs.InvalidArgument) {
		t.Errorf("wrong size: %v", err)
	}
	if left, err := os.ReadDir(s.tmpDir()); err != nil || len(left) != 0 {
		t.Errorf("left in tmp: %v, %v", left, err)
	}
	// A broken connection is distinct from a bad pack.
	broken := io.MultiReader(bytes.NewReader(full[:12]), errReader{})
	if _, err := s.ReadPack(t.Context(), d, broken); !errs.Is(err, errs.Unavailable) {
		t.Errorf("broken connection: %v", err)
	}
}

type errReader struct{}

func (errReader) Read([]byte) (int, error) { return 0, syscall.ECONNRESET }

func TestFileThatChangesMeanwhile(t *testing.T) {
	dir := tree(t, map[string]string{"a": "before"})
	tr := walk(t, dir, WalkOptions{})
	write(t, dir, map[string]string{"a": "after!"})
	if err := tr.WritePack(t.Context(), io.Discard, []Digest{tr.Manifest.Files[0].Digest}, nil); !errs.Is(err, errs.Conflict) {
		t.Errorf("got %v", err)
	}
}

// TestDamagedContentIsSentAgain cuts a content short, as a crash of the machine
// does with data that was not synced.
func TestDamagedContentIsSentAgain(t *testing.T) {
	s := newStore(t)
	tr := walk(t, tree(t, map[string]string{"a": "some text", "b": "other"}), WalkOptions{})
	d, _ := upload(t, tr, s)
	m, err := s.Manifest(d)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(s.blobFile(m.Files[0].Digest), 0); err != nil {
		t.Fatal(err)
	}
	if _, sent := upload(t, tr, s); sent != 1 {
		t.Errorf("%d contents were sent again", sent)
	}
	to := filepath.Join(t.TempDir(), "x")
	if err := s.Materialize(t.Context(), d, to); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(filepath.Join(to, "a")); err != nil || string(b) != "some text" {
		t.Errorf("got %q, %v", b, err)
	}
}

// TestDamagedContentIsNotBuilt overwrites a content, which keeps its size.
func TestDamagedContentIsNotBuilt(t *testing.T) {
	s := newStore(t)
	tr := walk(t, tree(t, map[string]string{"a": "some text", "b": "other"}), WalkOptions{})
	d, _ := upload(t, tr, s)
	m, err := s.Manifest(d)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(s.blobFile(m.Files[0].Digest), make([]byte, m.Files[0].Size), 0o644); err != nil {
		t.Fatal(err)
	}
	to := filepath.Join(t.TempDir(), "x")
	if err := s.Materialize(t.Context(), d, to); !errs.Is(err, errs.FailedPrecondition) || errs.HintOf(err) == "" {
		t.Errorf("a damaged content was laid out: %v", err)
	}
	if _, err := os.Lstat(to); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the folder is left: %v", err)
	}
	if _, sent := upload(t, tr, s); sent != 1 {
		t.Errorf("%d contents were sent again", sent)
	}
	if err := s.Materialize(t.Context(), d, to); err != nil {
		t.Error(err)
	}
}

func TestCollectRemovesOldestSources(t *testing.T) {
	s := NewStore(StoreConfig{Dir: filepath.Join(t.TempDir(), "sources"), MaxBytes: 10, MaxAge: 24 * time.Hour})
	add := func(files map[string]string) Digest {
		d, _ := upload(t, walk(t, tree(t, files), WalkOptions{}), s)
		return d
	}
	oldest := add(map[string]string{"a": "aaaa", "shared": "ssss"})
	middle := add(map[string]string{"b": "bbbb", "shared": "ssss"})
	now := time.Now()
	c, err := s.collect(t.Context(), now)
	if err != nil || c.Manifests != 0 || c.Blobs != 0 {
		t.Errorf("within the grace: %+v, %v", c, err)
	}
	for i, d := range []Digest{oldest, middle} {
		when := now.Add(time.Duration(i) * time.Minute)
		if err := os.Chtimes(s.manifestFile(d), when, when); err != nil {
			t.Fatal(err)
		}
	}
	c, err = s.collect(t.Context(), now.Add(2*time.Hour))
	if err != nil || c.Manifests != 1 || c.Blobs != 1 || c.Bytes != 4 || c.Kept != 8 {
		t.Errorf("over the budget: %+v, %v", c, err)
	}
	if err := s.Materialize(t.Context(), middle, filepath.Join(t.TempDir(), "x")); err != nil {
		t.Errorf("what was kept: %v", err)
	}
	if _, err := s.Manifest(oldest); !errs.Is(err, errs.NotFound) {
		t.Errorf("what was removed: %v", err)
	}
	if c, err = s.collect(t.Context(), now.Add(48*time.Hour)); err != nil || c.Manifests != 1 || c.Kept != 0 {
		t.Errorf("over the age: %+v, %v", c, err)
	}
	// A manifest that a power loss damaged is of no use, and goes; an unreadable one stops the collection.
	d := add(map[string]string{"c": "cccc"})
	damaged := s.manifestFile(digestOf([]byte("x")))
	if err := os.WriteFile(damaged, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if c, err := s.collect(t.Context(), time.Now()); err != nil || c.Manifests != 1 || c.Kept != 4 {
		t.Errorf("damaged manifest: %+v, %v", c, err)
	}
	if err := os.Mkdir(damaged, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := s.collect(t.Context(), now.Add(96*time.Hour)); !errs.Is(err, errs.Unavailable) {
		t.Errorf("unreadable manifest: %v", err)
	}
	if err := s.Materialize(t.Context(), d, filepath.Join(t.TempDir(), "y")); err != nil {
		t.Errorf("something was removed: %v", err)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"files":[{"path":"a","mode":"file","sha256":"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},{"path":"b","mode":"link","target":"a"}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := Decode(b, Limits{Files: 100, Bytes: 1000, FileBytes: 100})
		if err != nil {
			return
		}
		enc, err := m.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Decode(enc, Limits{}); err != nil {
			t.Errorf("what was decoded is refused: %v", err)
		}
		for _, x := range m.Files {
			if !filepath.IsLocal(x.Path) {
				t.Errorf("path %q", x.Path)
			}
		}
	})
}

func FuzzReadPack(f *testing.F) {
	f.Add([]byte(packMagic))
	dir := f.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a"), []byte("content"), 0o644); err != nil {
		f.Fatal(err)
	}
	tr, err := Walk(context.Background(), dir, WalkOptions{})
	if err != nil {
		f.Fatal(err)
	}
	defer tr.Close()
	var b bytes.Buffer
	d := tr.Manifest.Files[0].Digest
	if err := tr.WritePack(context.Background(), &b, []Digest{d}, nil); err != nil {
		f.Fatal(err)
	}
	f.Add(b.Bytes())
	f.Fuzz(func(t *testing.T, in []byte) {
		_ = ReadPack(bytes.NewReader(in), func(x Digest) (int64, bool) { return 7, x == d }, func(_ Digest, n int64, r io.Reader) error {
			got, err := io.Copy(io.Discard, r)
			if got > n {
				t.Errorf("%d bytes of %d", got, n)
			}
			return err
		})
	})
}

// TestRulesAreBounded: the rules that hold in a folder, with those of the folders above.
func TestRulesAreBounded(t *testing.T) {
	top := t.TempDir()
	dir := top
	half := bytes.Repeat([]byte("# text\n"), maxRules/2/7)
	for range 3 {
		dir = filepath.Join(dir, "sub")
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, ".gitignore"), half, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Walk(t.Context(), top, WalkOptions{}); !errs.Is(err, errs.ResourceExhausted) {
		t.Errorf("three files of half of the bytes: %v", err)
	}
	if _, err := Walk(t.Context(), dir, WalkOptions{Top: top}); !errs.Is(err, errs.ResourceExhausted) {
		t.Errorf("below two of them: %v", err)
	}
	if err := os.Rename(dir, filepath.Join(top, "beside")); err != nil {
		t.Fatal(err)
	}
	if tree, err := Walk(t.Context(), top, WalkOptions{}); err != nil {
		t.Errorf("two files, and one beside them: %v", err)
	} else {
		tree.Close()
	}
}

// TestTopOfARepository: rules above it do not hold, and a link in it is no file of rules.
func TestTopOfARepository(t *testing.T) {
	outer := t.TempDir()
	top := filepath.Join(outer, "top")
	dir := filepath.Join(top, "app")
	for _, d := range []string{dir, filepath.Join(outer, ".git")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range map[string]string{"app/file": "x", "app/b.log": "x", "../.gitignore": "*\n", "../rules": "file\n", "rules": "*.log\n"} {
		if err := os.WriteFile(filepath.Join(top, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	names := func() (out []string) {
		tree, err := Walk(t.Context(), dir, WalkOptions{Top: top})
		if err != nil {
			t.Fatal(err)
		}
		defer tree.Close()
		for _, f := range tree.Manifest.Files {
			out = append(out, f.Path)
		}
		return out
	}
	if got := names(); !slices.Equal(got, []string{"b.log", "file"}) {
		t.Errorf("without rules of the repository: %v", got)
	}
	if err := os.Symlink("../rules", filepath.Join(top, ".gitignore")); err != nil {
		t.Fatal(err)
	}
	if got := names(); !slices.Equal(got, []string{"b.log", "file"}) {
		t.Errorf("with a link out of it: %v", got)
	}
	if err := os.Rename(filepath.Join(top, "rules"), filepath.Join(top, ".gitignore")); err != nil {
		t.Fatal(err)
	}
	if got := names(); !slices.Equal(got, []string{"file"}) {
		t.Errorf("with its rules: %v", got)
	}
}
