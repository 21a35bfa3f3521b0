package runsc

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/mount"
	"golang.org/x/sys/unix"

	"miren.dev/runtime/testsupport/need"
)

// TestReadLayered compares what is read of layers with what an overlay of them shows.
func TestReadLayered(t *testing.T) {
	need.Root(t)
	const path = "/etc/ssl/x"
	file := func(content string) func(t *testing.T, dir string) {
		return func(t *testing.T, dir string) {
			if err := os.MkdirAll(filepath.Join(dir, "etc/ssl"), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, path), []byte(content), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	whiteout := func(name string) func(t *testing.T, dir string) {
		return func(t *testing.T, dir string) {
			if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := unix.Mknod(filepath.Join(dir, name), unix.S_IFCHR, 0); err != nil {
				t.Fatal(err)
			}
		}
	}
	opaque := func(name string) func(t *testing.T, dir string) {
		return func(t *testing.T, dir string) {
			if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := unix.Setxattr(filepath.Join(dir, name), "trusted.overlay.opaque", []byte("y"), 0); err != nil {
				t.Fatal(err)
			}
		}
	}
	nothing := func(*testing.T, string) {}
	for _, c := range []struct {
		name   string
		layers []func(t *testing.T, dir string) // uppermost first
	}{
		{"one", []func(*testing.T, string){file("a")}},
		{"the upper wins", []func(*testing.T, string){file("a"), file("b")}},
		{"from below", []func(*testing.T, string){nothing, nothing, file("c")}},
		{"none", []func(*testing.T, string){nothing, nothing}},
		{"file deleted", []func(*testing.T, string){whiteout("etc/ssl/x"), file("b")}},
		{"directory deleted", []func(*testing.T, string){whiteout("etc"), file("b")}},
		{"directory replaced", []func(*testing.T, string){opaque("etc/ssl"), file("b")}},
		{"root of it replaced", []func(*testing.T, string){nothing, opaque("etc"), file("b")}},
		{"deleted and made again", []func(*testing.T, string){file("a"), whiteout("etc/ssl/x"), file("b")}},
		{"a link", []func(*testing.T, string){func(t *testing.T, dir string) {
			if err := os.MkdirAll(filepath.Join(dir, "etc/ssl"), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink("/etc/passwd", filepath.Join(dir, path)); err != nil {
				t.Fatal(err)
			}
		}, file("b")}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var dirs []string
			for _, make := range c.layers {
				dir := t.TempDir()
				make(t, dir)
				dirs = append(dirs, dir)
			}
			dirs = append(dirs, t.TempDir()) // an overlay has two
			options := "lowerdir=" + strings.Join(dirs, ":")
			merged := t.TempDir()
			if err := unix.Mount("overlay", merged, "overlay", unix.MS_RDONLY, options); err != nil {
				t.Fatal(err)
			}
			defer unix.Unmount(merged, 0)
			var want []byte
			if info, err := os.Lstat(filepath.Join(merged, path)); err == nil && info.Mode().IsRegular() {
				if want, err = os.ReadFile(filepath.Join(merged, path)); err != nil {
					t.Fatal(err)
				}
			}
			got, err := readLayered([]mount.Mount{{Type: "overlay", Options: []string{"index=off", options}}}, path)
			if err != nil || string(got) != string(want) {
				t.Errorf("got %q, %v, want %q", got, err, want)
			}
		})
	}
}
