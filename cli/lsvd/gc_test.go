package lsvd_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"miren.dev/runtime/testsupport/need"
)

// TestGCOfClones: two clones overwrite most of their shared data. It stays while both have it.
// Once only one of them is left, the daemon, and a command without it, free what it does not use.
func TestGCOfClones(t *testing.T) {
	need.Tools(t, "nbdcopy")
	for _, attached := range []bool{true, false} {
		name := "closed"
		if attached {
			name = "attached"
		}
		t.Run(name, func(t *testing.T) {
			dir := withDaemon(t)
			const size, changed = 32 << 20, 24 << 20
			base := random(t, filepath.Join(dir, "base"), size)
			ok(t, "import", filepath.Join(dir, "base"), "base")
			var want []byte
			for _, v := range []string{"two", "one"} {
				ok(t, "clone", "base", v)
				ok(t, "serve", v)
				part := random(t, filepath.Join(dir, v), changed)
				want = append(bytes.Clone(part), base[changed:]...)
				nbdcopy(t, "--flush", filepath.Join(dir, v), uriOf(t, v))
			}
			ok(t, "delete", "base", "-y")
			gc := func() (bytes int64) {
				var freed struct {
					Bytes int64 `json:"bytes_freed"`
				}
				out := ok(t, "gc", "--json", "one")
				if err := json.Unmarshal([]byte(out), &freed); err != nil {
					t.Fatal(err)
				}
				return freed.Bytes
			}
			if n := gc(); n >= changed/2 {
				t.Errorf("%d bytes were freed that two clones share", n)
			}
			ok(t, "detach", "two")
			ok(t, "delete", "two", "-y")
			if !attached {
				ok(t, "detach", "one")
			}
			if n := gc(); n < changed/2 { // delete has freed the blocks of this clone alone
				t.Errorf("%d bytes were freed, a single clone does not use %d", n, changed)
			}
			ok(t, "export", "one", filepath.Join(dir, "out"), "--force")
			got, err := os.ReadFile(filepath.Join(dir, "out"))
			if err != nil || !bytes.Equal(got, want) {
				t.Errorf("the clone has another content (%v)", err)
			}
		})
	}
}
