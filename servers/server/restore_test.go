package server

import (
	"archive/tar"
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/pkg/backup"
	"miren.dev/runtime/pkg/config"
	"miren.dev/runtime/pkg/errs"
)

// TestHostileBackup: a backup that was made by hand reaches nothing outside of the
// state directory: by its id, nor by a link.
func TestHostileBackup(t *testing.T) {
	outside := t.TempDir()
	kept := filepath.Join(outside, "kept")
	if err := os.WriteFile(kept, []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		id    string
		class errs.Class
	}{
		"a link that leads out":         {"abcdefgh", errs.Unavailable},
		"an id that leads out":          {"../../" + filepath.Base(outside), errs.Corrupt},
		"the id of the directory above": {"..", errs.Corrupt},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := config.Default()
			cfg.StateDir, cfg.RunDir = filepath.Join(t.TempDir(), "state"), filepath.Join(filepath.Dir(outside), "run")
			var file bytes.Buffer
			w, err := backup.NewWriter(&file, backup.About{Version: "1", Instance: c.id, StateDir: "/var/lib/runtime", Time: time.Now()})
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range []struct {
				h    tar.Header
				text string
			}{
				{tar.Header{Name: "state/out", Typeflag: tar.TypeSymlink, Linkname: outside}, ""},
				{tar.Header{Name: "state/out/planted", Typeflag: tar.TypeReg, Mode: 0o600, Size: 7}, "planted"},
			} {
				if err := w.Add(&e.h, bytes.NewReader([]byte(e.text))); err != nil {
					t.Fatal(err)
				}
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			_, err = Restore(t.Context(), cfg, &file, nil, slog.New(slog.DiscardHandler), func(string) {})
			if !errs.Is(err, c.class) {
				t.Errorf("Restore: %v, want class %s", err, c.class)
			}
			if _, err := os.Stat(filepath.Join(outside, "planted")); err == nil {
				t.Error("it wrote outside of the state directory")
			}
			if b, err := os.ReadFile(kept); err != nil || string(b) != "kept" {
				t.Errorf("what was there: %q, %v", b, err)
			}
		})
	}
}

// TestBackupWithoutCaches: what the server makes again is not in a backup. The objects of git pushes belong to a user of
// their own, which a restore would not give them back to.
func TestBackupWithoutCaches(t *testing.T) {
	skip := skipState(true)
	for path, want := range map[string]bool{"git": true, "git/proj-1.shop.git": true, "tmp": true, "ssh": false, "sources": false, "lsvd": false, "gitignore": false} {
		top, _, _ := strings.Cut(path, "/")
		if got := skip(top) || skip(path); got != want {
			t.Errorf("%s is left out: %v", path, got)
		}
	}
}
