package loop

import (
	"math"
	"os"
	"path/filepath"
	"testing"
)

func TestMemoryLimit(t *testing.T) {
	root := t.TempDir()
	for name, content := range map[string]string{
		"memory/memory.limit_in_bytes":     "9223372036854771712\n",
		"memory/a/memory.limit_in_bytes":   "1000\n",
		"memory/a/b/memory.limit_in_bytes": "9223372036854771712\n",
		"u/memory.max":                     "max\n",
		"u/v/memory.max":                   "2000\n",
	} {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for groups, want := range map[string]int64{
		"":                           math.MaxInt64,
		"garbage\n":                  math.MaxInt64,
		"4:memory:/\n0::/\n":         math.MaxInt64,
		"4:memory:/a\n3:cpu:/x\n":    1000,
		"4:memory:/a/b\n":            1000,
		"4:memory:/gone/away\n":      math.MaxInt64,
		"0::/u\n":                    math.MaxInt64,
		"0::/u/v\n":                  2000,
		"4:memory:/a/b\n0::/u/v/w\n": 1000,
	} {
		if got := memoryLimit(root, groups); got != want {
			t.Errorf("%q: %d, want %d", groups, got, want)
		}
	}
}
