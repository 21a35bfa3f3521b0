package transfer

import (
	"archive/tar"
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

func TestPackAndUnpack(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	if err := os.MkdirAll(filepath.Join(from, "closed", "sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(from, "closed", "sub", "file"), []byte("text"), 0o750); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("sub/file", filepath.Join(from, "closed", "link")); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(from, "closed"), 0o500); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = os.Chmod(filepath.Join(from, "closed"), 0o700) // so that it can be removed
		_ = os.Chmod(filepath.Join(to, "closed"), 0o700)
	})
	var b bytes.Buffer
	counted := 0
	if err := pack(&b, from, func(n int) { counted += n }); err != nil || counted != 4 {
		t.Fatalf("%d bytes, %v", counted, err)
	}
	if err := unpack(&b, to); err != nil {
		t.Fatal(err)
	}
	for name, mode := range map[string]os.FileMode{"closed": os.ModeDir | 0o500, "closed/sub/file": 0o750} {
		if i, err := os.Stat(filepath.Join(to, name)); err != nil || i.Mode() != mode {
			t.Errorf("%s: %v, %v", name, i, err)
		}
	}
	if got, err := os.ReadFile(filepath.Join(to, "closed", "link")); err != nil || string(got) != "text" {
		t.Errorf("%q, %v", got, err)
	}
}

// A sandbox sends what it likes: no entry is written outside the directory.
func TestUnpackStaysInItsDirectory(t *testing.T) {
	file := func(name string) *tar.Header { return &tar.Header{Name: name, Mode: 0o644, Size: 4} }
	link := func(name, to string) *tar.Header {
		return &tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: to, Mode: 0o777}
	}
	for what, entries := range map[string][]*tar.Header{
		"dots":            {file("../evil")},
		"dots within":     {file("a/../../evil")},
		"absolute":        {file("/evil")},
		"through a link":  {link("l", ".."), file("l/evil")},
		"absolute link":   {link("l", "/"), file("l/evil")},
		"link for a dir":  {{Name: "d/", Typeflag: tar.TypeDir, Mode: 0o755}, link("d", ".."), file("d/evil")},
		"mode of a link":  {link("l", ".."), {Name: "l/", Typeflag: tar.TypeDir, Mode: 0o777}},
		"hard link":       {{Name: "h", Typeflag: tar.TypeLink, Linkname: "../outside", Mode: 0o644}},
		"device":          {{Name: "dev", Typeflag: tar.TypeChar, Mode: 0o644}},
		"the dir itself":  {file(".")},
		"parent as a dir": {{Name: "../", Typeflag: tar.TypeDir, Mode: 0o777}},
	} {
		t.Run(what, func(t *testing.T) {
			above := t.TempDir()
			dir := filepath.Join(above, "in")
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			var b bytes.Buffer
			w := tar.NewWriter(&b)
			for _, h := range entries {
				if err := w.WriteHeader(h); err != nil {
					t.Fatal(err)
				}
				if h.Size > 0 {
					if _, err := w.Write([]byte("evil")); err != nil {
						t.Fatal(err)
					}
				}
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			if err := unpack(&b, dir); err == nil {
				t.Error("it was unpacked")
			}
			if left, err := os.ReadDir(above); err != nil || len(left) != 1 {
				t.Errorf("beside the directory: %v, %v", left, err)
			}
			if _, err := os.Stat("/evil"); err == nil {
				t.Error("/evil was written")
			}
		})
	}
}
