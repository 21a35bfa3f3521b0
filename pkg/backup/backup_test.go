package backup

import (
	"archive/tar"
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"filippo.io/age"

	"miren.dev/runtime/pkg/errs"
)

// made returns a backup of a directory with a file, a link and one file left out.
func made(t *testing.T, to ...age.Recipient) []byte {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"a/file": strings.Repeat("content ", 1000), "skipped": "no"} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("file", filepath.Join(dir, "a", "link")); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	w, err := NewWriter(&out, About{Instance: "abcdefgh", Time: time.Unix(1, 0)}, to...)
	if err == nil {
		err = w.AddTree(dir, "state", func(path string) bool { return path == "skipped" })
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// entries reads a backup.
func entries(b []byte, ids ...age.Identity) (map[string]string, *About, error) {
	got := map[string]string{}
	about, err := Read(bytes.NewReader(b), ids, func(_ *About, h *tar.Header, r io.Reader) error {
		text, err := io.ReadAll(r)
		got[h.Name] = h.Linkname + string(text)
		return err
	})
	return got, about, err
}

func TestBackupIsReadAsItWasWritten(t *testing.T) {
	key, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string][]byte{"plain": made(t), "encrypted": made(t, key.Recipient())} {
		got, about, err := entries(b, key)
		if err != nil || about.Instance != "abcdefgh" || about.Format != Format {
			t.Fatalf("%s: %+v, %v", name, about, err)
		}
		if len(got) != 3 || got["state/a/file"] != strings.Repeat("content ", 1000) || got["state/a/link"] != "file" {
			t.Errorf("%s: %d entries: %v", name, len(got), got["state/a/link"])
		}
	}
}

func TestEncryptedBackupNeedsItsKey(t *testing.T) {
	key, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	other, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	b := made(t, key.Recipient())
	if bytes.Contains(b, []byte("abcdefgh")) {
		t.Error("the backup shows what it has")
	}
	for _, ids := range [][]age.Identity{nil, {other}} {
		if got, _, err := entries(b, ids...); !errs.Is(err, errs.PermissionDenied) || len(got) > 0 {
			t.Errorf("%d keys: %v, %v", len(ids), got, err)
		}
	}
}

func TestDamagedBackupIsRefused(t *testing.T) {
	key, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string][]byte{"plain": made(t), "encrypted": made(t, key.Recipient())} {
		for n := range len(b) {
			if _, _, err := entries(b[:n], key); err == nil {
				t.Fatalf("%s: the first %d of %d bytes are accepted", name, n, len(b))
			}
		}
		if _, _, err := entries(append(bytes.Clone(b), 'x'), key); err == nil {
			t.Errorf("%s: a byte more is accepted", name)
		}
		whole, _, err := entries(b, key)
		if err != nil {
			t.Fatal(err)
		}
		for i := range b {
			changed := bytes.Clone(b)
			changed[i] ^= 1
			// A bit of the headers of zstd may say the same in another way.
			if got, _, err := entries(changed, key); err == nil && got["state/a/file"] != whole["state/a/file"] {
				t.Errorf("%s: with a changed byte at %d of %d other content is accepted", name, i, len(b))
			}
		}
	}
}

// TestWrongSumsAreRefused: the sums of the entries count, also where compression
// sees nothing wrong.
func TestWrongSumsAreRefused(t *testing.T) {
	for what, damage := range map[string]func(w *Writer){
		"a sum that differs":   func(w *Writer) { w.sums["state/x"] = sum{strings.Repeat("0", 64), 1} },
		"an entry is missing":  func(w *Writer) { w.sums["state/y"] = sum{strings.Repeat("0", 64), 1} },
		"an entry without sum": func(w *Writer) { delete(w.sums, "state/x") },
	} {
		var out bytes.Buffer
		w, err := NewWriter(&out, About{})
		if err == nil {
			err = w.Add(&tar.Header{Name: "state/x", Typeflag: tar.TypeReg, Size: 1}, strings.NewReader("x"))
		}
		if err != nil {
			t.Fatal(err)
		}
		damage(w)
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if _, _, err := entries(out.Bytes()); !errs.Is(err, errs.Corrupt) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestFileThatBecomesShorterFailsTheBackup(t *testing.T) {
	w, err := NewWriter(io.Discard, About{})
	if err != nil {
		t.Fatal(err)
	}
	err = w.Add(&tar.Header{Name: "x", Typeflag: tar.TypeReg, Size: 2}, strings.NewReader("x"))
	if !errs.Is(err, errs.FailedPrecondition) {
		t.Errorf("%v", err)
	}
}

func TestNamesThatLeaveTheDirectoryAreRefused(t *testing.T) {
	var out bytes.Buffer
	w, err := NewWriter(&out, About{})
	if err == nil {
		err = w.Add(&tar.Header{Name: "../x", Typeflag: tar.TypeReg}, strings.NewReader(""))
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := entries(out.Bytes()); !errs.Is(err, errs.Corrupt) {
		t.Errorf("%v", err)
	}
}
