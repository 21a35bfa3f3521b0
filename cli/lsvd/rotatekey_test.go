package lsvd_test

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/lsvd/store/s3/s3test"
	"miren.dev/runtime/testsupport/need"
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
// it with the new key, from its own file or from the one that the disk was attached with.
func TestRotateKeyOfServedDisk(t *testing.T) {
	dir := withDaemon(t)
	file := func(name string) string { return filepath.Join(dir, name) }
	ok(t, "create", "secret", "--size", "32M", "--encrypt", "--key-file", file("key"))
	ok(t, "create", "plain", "--size", "1M")
	ok(t, "serve", "secret", "--key-file", file("key"))
	if err := os.WriteFile(file("wrong"), []byte(strings.Repeat("0", 64)), 0o600); err != nil {
		t.Fatal(err)
	}
	fails(t, exit.Failed, []string{"rotate-key", "secret", "--key-file", file("wrong"), "--new-key-file", file("key-2")}, "another key")
	fails(t, exit.Failed, []string{"serve", "secret", "--key-file", file("wrong")}, "another key")
	r := run(t, "rotate-key", "secret", "--key-file", file("key"), "--new-key-file", file("key-2"))
	if r.code != 0 || !strings.Contains(r.err, "opens it with "+file("key-2")+" from now on") {
		t.Fatalf("%d: %s", r.code, r.err)
	}
	ok(t, "snapshot", "create", "secret@x") // the disk works on
	opens := func(what string) {
		t.Helper()
		kill(t)
		ok(t, "serve", "plain")
		waitOpen(t, "secret", what)
	}
	opens("the disk is open with the new key")
	if err := os.Rename(file("key-2"), file("key")); err != nil {
		t.Fatal(err)
	}
	opens("the disk is open with the new key in the file of the old one")
	ok(t, "rotate-key", "secret", "--key-file", file("key"), "--new-key-file", file("key-3"))
	if err := os.Remove(file("key")); err != nil {
		t.Fatal(err)
	}
	opens("the disk is open without the file of the old key")
}

// waitOpen waits until the daemon has a volume open.
func waitOpen(t *testing.T, volume, what string) {
	t.Helper()
	wait.For(t, what, func() bool {
		for _, d := range decode[[]attached](t, ok(t, "list", "--json")) {
			if d.Name == volume {
				return d.Attached != nil && d.Attached.State == "open"
			}
		}
		return false
	})
}

// TestRotateKeyKilled kills the daemon in the middle of a rotation, before and after the store has the new key. The next
// daemon opens the disk with its content, and the rotation is repeated.
func TestRotateKeyKilled(t *testing.T) {
	need.Tools(t, "nbdcopy")
	server := s3test.Start(t, "versitygw")
	for name, fault := range map[string]s3test.Fault{"before": {Reset: true}, "after": {Silent: true}} {
		t.Run(name, func(t *testing.T) {
			proxy := s3test.NewProxy(t, server.URL) // the daemon ends before it
			dir := withDaemon(t)
			file := func(name string) string { return filepath.Join(dir, name) }
			url := func(endpoint string) string {
				return "s3://bucket/" + name + "?endpoint=" + endpoint + "&credentials=" + server.Credentials
			}
			t.Setenv("RUNTIME_LSVD_STORE", url(proxy.URL))
			want := image(t, file("image"))
			ok(t, "import", file("image"), "secret", "--size", "32M", "--encrypt", "--key-file", file("key"))
			ok(t, "create", "plain", "--size", "1M")
			ok(t, "serve", "secret", "--key-file", file("key"))
			asked := make(chan struct{})
			var once sync.Once
			proxy.SetHook(func(r s3test.Request) s3test.Fault {
				if r.Put != "replace" || !strings.Contains(r.Key, "/keys/") {
					return s3test.Fault{}
				}
				once.Do(func() { close(asked) })
				return fault
			})
			rotate := []string{"rotate-key", "secret", "--key-file", file("key"), "--new-key-file", file("key-2")}
			ended := make(chan result, 1)
			go func() { ended <- run(t, rotate...) }()
			wait.Receive(t, "the store is asked", asked)
			if name == "after" {
				wait.For(t, "the store has the new key", func() bool {
					return run(t, "check", "secret", "--key-file", file("key-2"), "--store", url(server.URL)).code == 0
				})
			}
			kill(t)
			if r := wait.Receive(t, "the end of the command", ended); r.code == 0 {
				t.Fatalf("the rotation succeeded without a daemon: %+v", r)
			}
			proxy.SetHook(nil)
			check := func(what string) {
				t.Helper()
				ok(t, "serve", "plain")
				waitOpen(t, "secret", what)
				nbdcopy(t, uriOf(t, "secret"), file("back"))
				same(t, file("back"), want)
			}
			check("the next daemon has opened the disk")
			ok(t, rotate...)
			kill(t)
			check("the disk is open after the rotation was repeated")
			if err := os.Remove(file("key")); err != nil {
				t.Fatal(err)
			}
			kill(t)
			check("the disk is open without the old key")
		})
	}
}
