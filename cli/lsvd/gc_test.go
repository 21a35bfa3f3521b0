package lsvd_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"miren.dev/runtime/testsupport/need"
)

// TestGCOfClones: two clones overwrite most of their shared data. The daemon,
// and a command without it, free the data that neither uses any more, and store
// shared data once.
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
			var args []string
			want := map[string][]byte{}
			for _, v := range []string{"one", "two"} {
				ok(t, "clone", "base", v)
				ok(t, "serve", v)
				part := random(t, filepath.Join(dir, v), changed)
				want[v] = append(bytes.Clone(part), base[changed:]...)
				nbdcopy(t, "--flush", filepath.Join(dir, v), uriOf(t, v))
				args = append(args, v)
			}
			ok(t, "delete", "base", "-y")
			if attached {
				args = args[:1]
			} else {
				ok(t, "detach", "one")
				ok(t, "detach", "two")
			}
			var freed struct {
				Segments int   `json:"segments_emptied"`
				Bytes    int64 `json:"bytes_freed"`
			}
			out := ok(t, append([]string{"gc", "--json"}, args...)...)
			if err := json.Unmarshal([]byte(out), &freed); err != nil {
				t.Fatal(err)
			}
			if freed.Segments == 0 || freed.Bytes < changed/2 {
				t.Errorf("%s: %+v", out, freed)
			}
			for v := range want {
				ok(t, "export", v, filepath.Join(dir, "out"), "--force")
				got, err := os.ReadFile(filepath.Join(dir, "out"))
				if err != nil || !bytes.Equal(got, want[v]) {
					t.Errorf("%s has another content (%v)", v, err)
				}
			}
		})
	}
}
