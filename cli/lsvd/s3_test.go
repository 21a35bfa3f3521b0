package lsvd_test

import (
	"path/filepath"
	"testing"

	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/lsvd/store/s3/s3test"
	"miren.dev/runtime/testsupport/need"
	"miren.dev/runtime/testsupport/wait"
)

// TestS3 attaches an encrypted volume and a plain one in a bucket, with the
// disk cache, and moves them to another machine.
func TestS3(t *testing.T) {
	need.Tools(t, "nbdcopy")
	server := s3test.Start(t, "versitygw")
	dir := withDaemon(t)
	file := func(name string) string { return filepath.Join(dir, name) }
	t.Setenv("RUNTIME_LSVD_STORE", "s3://bucket/disks?endpoint="+server.URL+"&credentials="+server.Credentials)
	want := image(t, file("image"))
	ok(t, "import", file("image"), "plain", "--size", "32M")
	ok(t, "import", file("image"), "secret", "--size", "32M", "--encrypt", "--key-file", file("key"))
	fails(t, exit.Failed, []string{"serve", "secret"}, "--key-file")
	ok(t, "serve", "plain")
	ok(t, "serve", "secret", "--key-file", file("key"))
	for range 2 {
		for _, v := range []string{"plain", "secret"} {
			nbdcopy(t, uriOf(t, v), file("back"))
			same(t, file("back"), want)
		}
		kill(t)
		ok(t, "serve", "plain")
		wait.For(t, "both are open", func() bool {
			list := decode[[]attached](t, ok(t, "list", "--json"))
			return list[0].State == "attached" && list[1].State == "attached" && list[1].Attached.State == "open"
		})
	}
	ok(t, "snapshot", "create", "secret@x")
	ok(t, "detach", "--all")
	ok(t, "daemon", "--stop")
	t.Setenv("RUNTIME_STATE_DIR", file("state2"))
	fails(t, exit.Failed, []string{"check", "secret"}, "key")
	ok(t, "check", "secret", "--key-file", file("key"))
	ok(t, "export", "secret@x", file("out"), "--key-file", file("key"))
	same(t, file("out"), want)
	ok(t, "rotate-key", "secret", "--key-file", file("key"), "--new-key-file", file("key-2"))
	fails(t, exit.Failed, []string{"check", "secret", "--key-file", file("key")}, "another key")
	ok(t, "check", "secret", "--key-file", file("key-2"))
	fails(t, exit.Failed, []string{"list", "--store", "s3://nobucket?endpoint=" + server.URL + "&credentials=" + server.Credentials}, "nobucket")
}
