package lsvd_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/testsupport/wait"
)

// TestRotateKey runs the commands of docs/lsvd.md: a volume gets another key, its snapshots with it, and a clone keeps
// its own. A rotation that ended after it had made the new key is repeated.
func TestRotateKey(t *testing.T) {
	dir := newState(t)
	file := func(name string) string { return filepath.Join(dir, name) }
	want := image(t, file("image"))
	ok(t, "import", file("image"), "secret", "--encrypt", "--key-file", file("secret.key"), "--size", "32M")
	ok(t, "snapshot", "create", "secret@monday", "--key-file", file("secret.key"))
	fails(t, exit.Failed, []string{"clone", "secret@monday", "test"}, "--key-file")
	fails(t, exit.Failed, []string{"export", "secret@monday", file("x")}, "--key-file")
	ok(t, "clone", "secret@monday", "test", "--key-file", file("secret.key"))
	ok(t, "create", "plain", "--size", "1M")

	fails(t, exit.Usage, []string{"rotate-key", "secret", "--key-file", file("secret.key")}, "--new-key-file")
	fails(t, exit.Failed, []string{"rotate-key", "plain", "--key-file", file("secret.key"), "--new-key-file", file("plain.key")}, "not encrypted")
	if _, err := os.Stat(file("plain.key")); err == nil {
		t.Error("a refused rotation has made a key")
	}
	if err := os.WriteFile(file("wrong.key"), []byte(strings.Repeat("0", 64)), 0o600); err != nil {
		t.Fatal(err)
	}
	// It makes the file of the new key before it finds out that the old one is wrong, as if it were killed in between.
	fails(t, exit.Failed, []string{"rotate-key", "secret", "--key-file", file("wrong.key"), "--new-key-file", file("secret-2.key")}, "another key")
	ok(t, "check", "secret", "--key-file", file("secret.key"))
	for range 2 {
		ok(t, "rotate-key", "secret", "--key-file", file("secret.key"), "--new-key-file", file("secret-2.key"))
	}
	for _, v := range []string{"secret", "secret@monday"} {
		fails(t, exit.Failed, []string{"export", v, file("x"), "--key-file", file("secret.key")}, "another key")
		ok(t, "export", v, file("back"), "--key-file", file("secret-2.key"), "--force")
		same(t, file("back"), want)
	}
	ok(t, "check", "test", "--key-file", file("secret.key"))
	fails(t, exit.Failed, []string{"dump", "test"}, "is encrypted")
	ok(t, "dump", "test", "--key-file", file("secret.key"))
}

// TestRotateKeyOfServedDisk rotates the key of a disk that the daemon serves: it is served on, and the next daemon opens
// it when the new key is in its key file.
func TestRotateKeyOfServedDisk(t *testing.T) {
	dir := withDaemon(t)
	file := func(name string) string { return filepath.Join(dir, name) }
	ok(t, "create", "secret", "--size", "32M", "--encrypt", "--key-file", file("key"))
	ok(t, "create", "plain", "--size", "1M")
	ok(t, "serve", "secret", "--key-file", file("key"))
	r := run(t, "rotate-key", "secret", "--key-file", file("key"), "--new-key-file", file("key-2"))
	if r.code != 0 || !strings.Contains(r.err, "the volume is attached: put the new key into") {
		t.Fatalf("%d: %s", r.code, r.err)
	}
	ok(t, "snapshot", "create", "secret@x") // the disk works on
	if err := os.Rename(file("key-2"), file("key")); err != nil {
		t.Fatal(err)
	}
	kill(t)
	ok(t, "serve", "plain")
	wait.For(t, "the disk is open with the new key", func() bool {
		for _, d := range decode[[]attached](t, ok(t, "list", "--json")) {
			if d.Name == "secret" {
				return d.Attached != nil && d.Attached.State == "open"
			}
		}
		return false
	})
}
