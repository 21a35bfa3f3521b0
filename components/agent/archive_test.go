package agent_test

import (
	"archive/tar"
	"bytes"
	"io"
	"strings"
	"testing"

	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/sandboxfs"
)

func (f *filesFixture) extract(x sandboxfs.FS, path string, archive []byte) error {
	f.t.Helper()
	w, err := x.Extract(f.ctx(), path)
	if err != nil {
		return err
	}
	defer w.Close()
	if _, err := w.Write(archive); err != nil {
		return err
	}
	return w.Finish(f.ctx())
}

func pack(t *testing.T, entries ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range entries {
		content := h.Uname // of the tests
		h.Uname = ""
		if h.Typeflag == tar.TypeReg {
			h.Size = int64(len(content))
		}
		if h.Mode == 0 {
			h.Mode = 0o644
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			if _, err := io.WriteString(w, content); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestArchiveRoundTrip(t *testing.T) {
	withFiles(t, func(t *testing.T, f *filesFixture) {
		x := f.files(sandboxfs.View{User: "1234:1234"})
		script := "cd " + f.dir + " && mkdir -p a/b/empty && head -c 3000000 /dev/urandom >a/big && echo text >a/b/text && chmod 750 a/b && chmod 600 a/b/text && ln -s b/text a/link && mkfifo a/pipe && : >a/nothing"
		if r := f.exec(execution.ExecSpec{Command: []string{"/bin/sh", "-c", script}, User: "1234:1234"}); r.code != 0 {
			t.Fatal(r)
		}
		r, err := x.Archive(f.ctx(), f.dir+"/a")
		if err != nil {
			t.Fatal(err)
		}
		archive, err := io.ReadAll(r)
		r.Close()
		if err != nil {
			t.Fatal(err)
		}
		if err := f.extract(x, f.dir+"/new/copy", archive); err != nil {
			t.Fatal(err)
		}
		list := func(dir string) string {
			t.Helper()
			script := "cd " + f.dir + "/" + dir + " && find . ! -name pipe -printf '%p %y %m %U %s %l\\n' | grep -v '^. d' | sed 's/ d \\([0-9]* [0-9]*\\) [0-9]*/ d \\1/' | sort; cat big b/text | sha256sum"
			r := f.exec(execution.ExecSpec{Command: []string{"/bin/sh", "-c", script}, User: "1234:1234"})
			if r.code != 0 {
				t.Fatal(r)
			}
			return r.out
		}
		if a, b := list("a"), list("new/copy"); a != b || !strings.Contains(a, "./b/text f 600 1234 5") {
			t.Errorf("%s is unpacked as %s", a, b)
		}
		if err := f.extract(x, f.dir+"/new/copy", archive); err != nil {
			t.Errorf("again: %v", err)
		}
		if r, err = x.Archive(f.ctx(), f.dir+"/a/b/text"); err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		tr := tar.NewReader(r)
		if h, err := tr.Next(); err != nil || h.Name != "text" {
			t.Fatalf("%+v, %v", h, err)
		}
		if b, err := io.ReadAll(tr); string(b) != "text\n" || err != nil {
			t.Errorf("%q, %v", b, err)
		}
		if _, err := x.Archive(f.ctx(), f.dir+"/none"); !errs.Is(err, errs.NotFound) {
			t.Errorf("%v", err)
		}
		for name, b := range map[string][]byte{"cut": archive[:len(archive)/2], "no tar": bytes.Repeat([]byte("no tar "), 1000)} {
			if err := f.extract(x, f.dir+"/new/bad", b); !errs.Is(err, errs.InvalidArgument) {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

func TestArchivesAreConfined(t *testing.T) {
	withFiles(t, func(t *testing.T, f *filesFixture) {
		x := f.files(sandboxfs.View{User: "1234:1234"})
		setup := "cd " + f.dir + " && mkdir -m 777 in out && echo kept >out/file && chmod 666 out/file && ln -s ../out in/there"
		if r := f.exec(execution.ExecSpec{Command: []string{"/bin/sh", "-c", setup}, User: "1234:1234"}); r.code != 0 {
			t.Fatal(r)
		}
		file := func(name string) tar.Header { return tar.Header{Typeflag: tar.TypeReg, Name: name, Uname: "evil"} }
		link := func(name, to string) tar.Header {
			return tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: to}
		}
		hard := func(name, to string) tar.Header { return tar.Header{Typeflag: tar.TypeLink, Name: name, Linkname: to} }
		for name, b := range map[string][]byte{
			"absolute name":              pack(t, file(f.dir+"/out/file")),
			"above":                      pack(t, file("../out/file")),
			"above, hidden":              pack(t, file("a/../../out/file")),
			"a link that was there":      pack(t, file("there/file")),
			"a link of the archive":      pack(t, link("l", "../out"), file("l/file")),
			"an absolute link":           pack(t, link("m", f.dir+"/out"), file("m/file")),
			"a directory through a link": pack(t, tar.Header{Typeflag: tar.TypeDir, Name: "there/dir/"}),
			"a hard link above":          pack(t, hard("h", "../out/file"), file("h")),
			"a hard link through a link": pack(t, hard("h", "there/file"), file("h")),
			"an absolute hard link":      pack(t, hard("h", f.dir+"/out/file")),
			"the directory itself":       pack(t, file(".")),
			"procfs":                     pack(t, link("p", "/proc/self/fd"), file("p/0")),
		} {
			if err := f.extract(x, f.dir+"/in", b); !errs.Is(err, errs.PermissionDenied) && !errs.Is(err, errs.InvalidArgument) {
				t.Errorf("%s: %v", name, err)
			}
		}
		// An existing link is replaced, not followed.
		b := pack(t, link("x", "../out/file"), file("x"))
		if err := f.extract(x, f.dir+"/in", b); err != nil {
			t.Errorf("a file in place of a link: %v", err)
		}
		if r := f.sh("cd " + f.dir + " && cat out/file in/x && ls out"); r.out != "kept\nevilfile\n" {
			t.Errorf("%q", r.out)
		}
		for _, kind := range []byte{tar.TypeChar, tar.TypeBlock, tar.TypeFifo} {
			if err := f.extract(x, f.dir+"/in", pack(t, tar.Header{Typeflag: kind, Name: "dev"})); !errs.Is(err, errs.InvalidArgument) {
				t.Errorf("an entry of type %c: %v", kind, err)
			}
		}
		root := f.files(sandboxfs.View{User: "1234", Roots: []string{f.dir + "/in"}})
		if err := f.extract(root, f.dir+"/in/there", pack(t, file("file"))); !errs.Is(err, errs.PermissionDenied) {
			t.Errorf("outside the roots: %v", err)
		}
		if _, err := root.Archive(f.ctx(), f.dir+"/in/there"); !errs.Is(err, errs.PermissionDenied) {
			t.Errorf("outside the roots: %v", err)
		}
	})
}
