package lsvd_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/lsvd/store/s3/s3test"
)

// TestCopyBetweenStores copies snapshots of a volume from a directory to a bucket, on to
// another prefix and back to a directory; each copy sends only what is new, an
// incomplete one is completed, and a volume made from it has the same content.
func TestCopyBetweenStores(t *testing.T) {
	server := s3test.Start(t, "versitygw")
	dir := newState(t)
	file := func(name string) string { return filepath.Join(dir, name) }
	bucket := func(prefix string) string {
		return "s3://bucket/" + prefix + "?endpoint=" + server.URL + "&credentials=" + server.Credentials
	}
	type copied struct {
		ID, Volume string
		Bytes      int64
		SentBytes  int64 `json:"sent_bytes"`
	}
	want := image(t, file("image"))
	ok(t, "import", file("image"), "data", "--size", "32M")
	ok(t, "snapshot", "create", "data@one")
	first := decode[copied](t, ok(t, "copy", "data@one", file("backup"), "--json"))
	if first.Bytes == 0 || first.SentBytes < first.Bytes {
		t.Errorf("the first copy: %+v", first)
	}
	ok(t, "snapshot", "create", "data@two")
	if c := decode[copied](t, ok(t, "copy", "data@two", file("backup"), "--json")); c.SentBytes >= first.SentBytes/2 {
		t.Errorf("the second copy sent %d bytes, the first %d", c.SentBytes, first.SentBytes)
	}

	// An incomplete copy: its snapshot and an object are not there.
	var object, manifest string
	err := filepath.WalkDir(file("backup"), func(path string, e os.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			if i, err := e.Info(); err == nil && i.Size() > 1<<20 {
				object = path
			}
			if strings.Contains(path, "two") {
				manifest = path
			}
		}
		return err
	})
	if err != nil || object == "" || manifest == "" {
		t.Fatalf("object %q, manifest %q, %v", object, manifest, err)
	}
	for _, f := range []string{object, manifest} {
		if err := os.Remove(f); err != nil {
			t.Fatal(err)
		}
	}
	if c := decode[copied](t, ok(t, "copy", "data@two", file("backup"), "--as", "restored", "--json")); c.SentBytes == 0 || c.Volume == "" {
		t.Errorf("completed: %+v", c)
	}
	ok(t, "export", "restored", file("out"), "--store", file("backup"))
	same(t, file("out"), want)

	ok(t, "copy", "data@two", bucket("a"), "--as", "data") // directory to bucket
	ok(t, "export", "data", file("out1"), "--store", bucket("a"))
	same(t, file("out1"), want)
	ok(t, "snapshot", "create", "data@three", "--store", bucket("a"))
	ok(t, "copy", "data@three", bucket("b"), "--as", "data", "--store", bucket("a")) // bucket to bucket
	ok(t, "export", "data", file("out2"), "--store", bucket("b"))
	same(t, file("out2"), want)
	ok(t, "copy", "data@three", file("back"), "--as", "data", "--store", bucket("a")) // bucket to directory
	ok(t, "check", "data", "--store", file("back"))

	ok(t, "copy", "data@one", file("backup"), "--delete")
	ok(t, "check", "restored", "--store", file("backup"))
	ok(t, "delete", "restored", "--store", file("backup"), "--yes")
	if c := decode[struct {
		Freed int64 `json:"freed_bytes"`
	}](t, ok(t, "copy", first.ID+"@two", file("backup"), "--delete", "--json")); c.Freed == 0 {
		t.Error("the last copy was deleted, and nothing was freed")
	}
	fails(t, exit.Failed, []string{"copy", "data@one", file("state/lsvd/store"), "--delete"}, "not a copy")

	fails(t, exit.Usage, []string{"copy", "data", file("backup")}, "does not name a snapshot")
	fails(t, exit.Usage, []string{"copy", "data@one", file("state/lsvd/store")}, "the store of the volume")
	fails(t, exit.Failed, []string{"copy", "data@none", file("backup")}, "none")
	fails(t, exit.Failed, []string{"copy", "nothing@one", file("backup")}, "nothing")
}
