package filesystem_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"miren.dev/runtime/components/filesystem"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/testsupport/need"
	"miren.dev/runtime/testsupport/private"
)

func TestMain(m *testing.M) { os.Exit(private.Main(m)) }

// TestFileSystems makes, mounts, grows and unmounts each kind on a loop device.
func TestFileSystems(t *testing.T) {
	need.Root(t)
	for kind, size := range map[filesystem.Kind]int64{filesystem.Ext4: 32 << 20, filesystem.XFS: 320 << 20} {
		t.Run(string(kind), func(t *testing.T) {
			need.Tools(t, "mkfs."+string(kind))
			image, dir := filepath.Join(t.TempDir(), "image"), filepath.Join(t.TempDir(), "mnt")
			if err := os.WriteFile(image, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			resize := func(to int64) {
				t.Helper()
				if err := os.Truncate(image, to); err != nil {
					t.Fatal(err)
				}
			}
			losetup := func(args ...string) string {
				t.Helper()
				out, err := exec.Command("losetup", args...).CombinedOutput()
				if err != nil {
					t.Fatalf("losetup %v: %v: %s", args, err, out)
				}
				return strings.TrimSpace(string(out))
			}
			must := func(err error) {
				t.Helper()
				if err != nil {
					t.Fatal(err)
				}
			}
			resize(size)
			device := losetup("--show", "-f", image)
			t.Cleanup(func() { losetup("-d", device) })
			ctx := t.Context()
			must(filesystem.Make(ctx, device, kind))
			must(filesystem.Mount(device, dir, kind))
			t.Cleanup(func() { must(filesystem.Unmount(dir)) })
			must(filesystem.Open(dir))
			if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
				t.Errorf("a new file system has %v, %v", left, err)
			}
			if got, err := filesystem.Device(dir); err != nil || got != device {
				t.Errorf("on %s is %q, %v; not %s", dir, got, err, device)
			}
			must(os.WriteFile(filepath.Join(dir, "file"), make([]byte, 1<<20), 0o644))
			must(filesystem.Sync(dir))
			if used, err := filesystem.Used(dir); err != nil || used < 1<<20 || used > size {
				t.Errorf("%d bytes are used, %v", used, err)
			}

			f, err := os.Open(filepath.Join(dir, "file"))
			must(err)
			if err := filesystem.Unmount(dir); !errs.Is(err, errs.FailedPrecondition) || errs.Detail(err, "reason") != "busy" {
				t.Errorf("unmount while a file is open: %v", err)
			}
			must(f.Close())

			resize(2 * size)
			losetup("-c", device)
			if filesystem.GrowsMounted(kind) {
				must(filesystem.Grow(ctx, device, dir, kind))
			} else {
				if err := filesystem.GrowUnmounted(ctx, device); !errs.Is(err, errs.FailedPrecondition) {
					t.Errorf("growth of a mounted device as if it were not: %v", err)
				}
				must(filesystem.Unmount(dir))
				must(filesystem.GrowUnmounted(ctx, device))
				must(filesystem.Mount(device, dir, kind))
			}
			must(os.WriteFile(filepath.Join(dir, "big"), make([]byte, size), 0o644))
			must(filesystem.Sync(dir))
			must(filesystem.Unmount(dir))
			if got, err := filesystem.Device(dir); err != nil || got != "" {
				t.Errorf("after the unmount %q is mounted, %v", got, err)
			}
			must(filesystem.Unmount(dir)) // may be repeated
		})
	}
}
