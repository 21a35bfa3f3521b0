package dir_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"miren.dev/runtime/lsvd/store"
	"miren.dev/runtime/lsvd/store/dir"
	"miren.dev/runtime/lsvd/store/storetest"
)

func TestConforms(t *testing.T) {
	storetest.Run(t, func(t *testing.T) store.Store {
		d, err := dir.Open(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		return d
	})
}

func TestSweepsLeftovers(t *testing.T) {
	root := t.TempDir()
	if _, err := dir.Open(root); err != nil {
		t.Fatal(err)
	}
	old, fresh := filepath.Join(root, ".tmp", "put-1"), filepath.Join(root, ".tmp", "put-2")
	for _, p := range []string{old, fresh} {
		if err := os.WriteFile(p, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	past := time.Now().Add(-2 * time.Hour)
	if err := os.Chtimes(old, past, past); err != nil {
		t.Fatal(err)
	}
	if _, err := dir.Open(root); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(old); !os.IsNotExist(err) {
		t.Errorf("leftover of a crash is still there: %v", err)
	}
	if _, err := os.Stat(fresh); err != nil {
		t.Errorf("file of a running writer is gone: %v", err)
	}
}
