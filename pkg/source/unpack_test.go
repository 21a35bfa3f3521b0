package source

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"io"
	"strings"
	"testing"

	"miren.dev/runtime/pkg/errs"
)

func archive(t *testing.T, compressed bool, headers ...tar.Header) io.Reader {
	t.Helper()
	var b bytes.Buffer
	var out io.WriteCloser = nopCloser{&b}
	if compressed {
		out = gzip.NewWriter(&b)
	}
	w := tar.NewWriter(out)
	for _, h := range headers {
		content := h.Uname // of a regular file
		h.Uname, h.Size = "", int64(len(content))
		if h.Typeflag == 0 {
			h.Typeflag = tar.TypeReg
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
	return &b
}

type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }

func TestUnpackArchives(t *testing.T) {
	u, err := NewUnpacked(t.TempDir(), Limits{})
	if err != nil {
		t.Fatal(err)
	}
	for prefix, a := range map[string]io.Reader{
		"one": archive(t, true, tar.Header{Name: "d/", Typeflag: tar.TypeDir}, tar.Header{Name: "d/run", Uname: "#!", Mode: 0o755},
			tar.Header{Name: "d/same", Uname: "same"}, tar.Header{Name: "d/hard", Typeflag: tar.TypeLink, Linkname: "d/same"}),
		"two": archive(t, false, tar.Header{Name: "./same", Uname: "same"}, tar.Header{Name: "empty"}, tar.Header{Name: "empty"}, tar.Header{Name: "empty"},
			tar.Header{Name: "link", Typeflag: tar.TypeSymlink, Linkname: "same"}),
	} {
		if err := u.Add(prefix, a); err != nil {
			t.Fatal(err)
		}
	}
	tree, err := u.Tree()
	if err != nil {
		t.Fatal(err)
	}
	defer tree.Close()
	got := map[string]string{}
	for _, f := range tree.Manifest.Files {
		got[f.Path] = string(f.Mode) + " " + f.Target
		if f.Mode == Symlink {
			continue
		}
		c, err := tree.Open(f.Digest)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(c)
		c.Close()
		if err != nil || int64(len(b)) != f.Size || digestOf(b) != f.Digest {
			t.Errorf("%s: %q, %v", f.Path, b, err)
		}
		got[f.Path] += string(b)
	}
	for p, want := range map[string]string{
		"one/d/run": "exec #!", "one/d/same": "file same", "one/d/hard": "file same", "two/same": "file same", "two/empty": "file ", "two/link": "link same",
	} {
		if got[p] != want {
			t.Errorf("%s is %q, want %q", p, got[p], want)
		}
		delete(got, p)
	}
	if len(got) > 0 {
		t.Errorf("and %v", got)
	}
}

func TestUnpackRefusesWhatLeadsOut(t *testing.T) {
	var folders, same []tar.Header
	for range 100 {
		folders = append(folders, tar.Header{Name: "d", Typeflag: tar.TypeDir})
		same = append(same, tar.Header{Name: "a"})
	}
	for name, c := range map[string]struct {
		of   io.Reader
		want errs.Class
	}{
		"no archive":    {bytes.NewReader(bytes.Repeat([]byte("no archive"), 100)), errs.InvalidArgument},
		"cut short":     {io.LimitReader(archive(t, true, tar.Header{Name: "a", Uname: "content"}), 40), errs.InvalidArgument},
		"climbs":        {archive(t, false, tar.Header{Name: "../../a", Uname: "a"}), errs.InvalidArgument},
		"a link climbs": {archive(t, false, tar.Header{Name: "a", Typeflag: tar.TypeSymlink, Linkname: "../../../etc"}), errs.InvalidArgument},
		"absolute link": {archive(t, false, tar.Header{Name: "a", Typeflag: tar.TypeSymlink, Linkname: "/etc"}), errs.InvalidArgument},
		"a device":      {archive(t, false, tar.Header{Name: "a", Typeflag: tar.TypeChar}), errs.InvalidArgument},
		"hard link out": {archive(t, false, tar.Header{Name: "a", Typeflag: tar.TypeLink, Linkname: "/etc/passwd"}), errs.InvalidArgument},
		"a long path":   {archive(t, false, tar.Header{Name: strings.Repeat("a/", maxPath) + "a", Uname: "a"}), errs.InvalidArgument},
		"a long target": {archive(t, false, tar.Header{Name: "a", Typeflag: tar.TypeSymlink, Linkname: strings.Repeat("a/", maxPath) + "a"}), errs.InvalidArgument},
		"only folders":  {archive(t, true, folders...), errs.ResourceExhausted},
		"one file":      {archive(t, true, same...), errs.ResourceExhausted},
		"too much":      {archive(t, false, tar.Header{Name: "a", Uname: "more than ten bytes"}), errs.ResourceExhausted},
		"too many":      {archive(t, false, tar.Header{Name: "a"}, tar.Header{Name: "b"}, tar.Header{Name: "c"}), errs.ResourceExhausted},
	} {
		u, err := NewUnpacked(t.TempDir(), Limits{Bytes: 10, Files: 2})
		if err != nil {
			t.Fatal(err)
		}
		err = u.Add("p", c.of)
		for p, f := range u.files {
			if len(p) > maxPath || len(f.Target) > maxPath {
				t.Errorf("%s: a name of %d bytes and a target of %d are kept", name, len(p), len(f.Target))
			}
		}
		if err == nil {
			_, err = u.Tree()
		}
		if !errs.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
		u.Close()
	}
}
