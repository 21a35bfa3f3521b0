package atomicfile_test

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"miren.dev/runtime/pkg/atomicfile"
)

// holds fails the test unless a directory has exactly one file, with that text.
func holds(t *testing.T, path, text string) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil || string(b) != text {
		t.Errorf("the file has %q, %v; want %q", b, err, text)
	}
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(entries) != 1 {
		t.Errorf("the directory has %v, %v; want one file", entries, err)
	}
}

func TestWriteReplacesContentAndMode(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	for _, x := range []struct {
		text  string
		mode  fs.FileMode
		flags []atomicfile.Flag
	}{
		{"first", 0o600, nil},
		{"second, longer", 0o666, nil}, // whatever the umask
		{"third", 0o644, []atomicfile.Flag{atomicfile.Volatile}},
		{"", 0o400, nil},
		{"fifth, over one that cannot be written", 0o600, nil},
	} {
		if err := atomicfile.Write(path, []byte(x.text), x.mode, x.flags...); err != nil {
			t.Fatal(err)
		}
		holds(t, path, x.text)
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != x.mode {
			t.Errorf("mode %v, %v; want %v", info.Mode(), err, x.mode)
		}
	}
}

func TestFailureLeavesTheOldFileAndNothingElse(t *testing.T) {
	for name, fail := range map[string]func(f *atomicfile.File) error{
		"write": func(f *atomicfile.File) error {
			f.Close()
			_, err := f.WriteString("new")
			return err
		},
		"sync": func(f *atomicfile.File) error { f.Close(); return f.Commit() },
		"rename": func(f *atomicfile.File) error {
			os.Remove(f.Name())
			return f.Commit()
		},
		"abort": func(f *atomicfile.File) error {
			f.Abort()
			return f.Commit()
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "file")
			if err := os.WriteFile(path, []byte("old"), 0o600); err != nil {
				t.Fatal(err)
			}
			f, err := atomicfile.Create(path, 0o600)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Abort()
			if _, err := f.WriteString("new"); err != nil {
				t.Fatal(err)
			}
			if err := fail(f); err == nil {
				t.Error("no error")
			}
			f.Abort()
			holds(t, path, "old")
		})
	}
	t.Run("place taken by a directory", func(t *testing.T) {
		dir := t.TempDir()
		path := filepath.Join(dir, "taken")
		if err := os.MkdirAll(filepath.Join(path, "full"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := atomicfile.Write(path, []byte("new"), 0o600); err == nil {
			t.Error("a directory was replaced")
		}
		if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
			t.Errorf("the directory has %v, %v", entries, err)
		}
	})
	t.Run("no directory", func(t *testing.T) {
		if err := atomicfile.Write(filepath.Join(t.TempDir(), "none", "file"), nil, 0o600); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("got %v", err)
		}
	})
}

func TestNoReplaceKeepsWhatIsThere(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := atomicfile.Write(path, []byte("first"), 0o600, atomicfile.NoReplace); err != nil {
		t.Fatal(err)
	}
	holds(t, path, "first")
	if err := atomicfile.Write(path, []byte("second"), 0o600, atomicfile.NoReplace); !errors.Is(err, fs.ErrExist) {
		t.Errorf("got %v", err)
	}
	holds(t, path, "first")
}

func TestConcurrentWritersDoNotMix(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	var wg sync.WaitGroup
	for c := 'a'; c < 'a'+8; c++ {
		text := strings.Repeat(string(c), 1<<16)
		wg.Go(func() {
			for range 20 {
				if err := atomicfile.Write(path, []byte(text), 0o600, atomicfile.Volatile); err != nil {
					t.Error(err)
				}
				if b, err := os.ReadFile(path); err != nil || len(b) != len(text) || strings.Trim(string(b), string(b[:1])) != "" {
					t.Errorf("read %d bytes of several writers, %v", len(b), err)
				}
			}
		})
	}
	wg.Wait()
	b, _ := os.ReadFile(path)
	holds(t, path, string(b))
}

func TestAbandonedFilesAreRemovedAfterAnHour(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	killed := func(path string, age time.Duration) string {
		f, err := atomicfile.Create(path, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
		at := time.Now().Add(-age)
		if err := os.Chtimes(f.Name(), at, at); err != nil {
			t.Fatal(err)
		}
		return filepath.Base(f.Name())
	}
	young := killed(path, 50*time.Minute)
	old := killed(path, 2*time.Hour)
	other := killed(filepath.Join(dir, "other"), 2*time.Hour)
	if err := atomicfile.Write(path, []byte("new"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{young: true, old: false, other: true, "file": true} {
		if _, err := os.Stat(filepath.Join(dir, name)); (err == nil) != want {
			t.Errorf("%s: %v, want there %v", name, err, want)
		}
		if atomicfile.IsTemp(name) != (name != "file") {
			t.Errorf("IsTemp(%s) is %v", name, atomicfile.IsTemp(name))
		}
	}
}

func TestCreateIn(t *testing.T) {
	tmp, path := t.TempDir(), filepath.Join(t.TempDir(), "file")
	f, err := atomicfile.CreateIn(tmp, path, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Abort()
	if filepath.Dir(f.Name()) != tmp {
		t.Errorf("the temporary file is %s", f.Name())
	}
	if _, err := bytes.NewBufferString("text").WriteTo(f); err != nil {
		t.Fatal(err)
	}
	if err := f.Commit(); err != nil {
		t.Fatal(err)
	}
	holds(t, path, "text")
	if entries, err := os.ReadDir(tmp); err != nil || len(entries) > 0 {
		t.Errorf("left over: %v, %v", entries, err)
	}
}

func TestTreeIsSyncedAndMoved(t *testing.T) {
	dir := t.TempDir()
	from, to := filepath.Join(dir, "from"), filepath.Join(dir, "to")
	if err := os.MkdirAll(filepath.Join(from, "sub"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(from, "sub", "file"), []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("nowhere", filepath.Join(from, "link")); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(atomicfile.SyncTree(from), atomicfile.Rename(from, to)); err != nil {
		t.Fatal(err)
	}
	holds(t, filepath.Join(to, "sub", "file"), "text")
	if err := atomicfile.SyncTree(from); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a tree that is not there: %v", err)
	}
}
