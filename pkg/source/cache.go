package source

import (
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"miren.dev/runtime/pkg/atomicfile"
	"miren.dev/runtime/pkg/errs"
)

// A file that changed this recently may change again while its times stay the
// same, so its digest is not remembered.
const racy = 2 * time.Second

// Cache remembers the digests of files by path, size, inode and times. It
// belongs to one folder. A nil Cache remembers nothing.
type Cache struct {
	file string

	mu      sync.Mutex
	old     map[string]cached
	current map[string]cached // files seen by the walk since OpenCache
}

type cached struct {
	Size   int64  `json:"size"`
	Inode  uint64 `json:"inode"`
	MTime  int64  `json:"mtime"` // ns
	CTime  int64  `json:"ctime"` // ns
	Digest Digest `json:"sha256"`
}

// OpenCache reads the cache of a folder; dir is where caches are kept. A
// missing or damaged one is empty.
func OpenCache(dir, folder string) *Cache {
	abs, err := filepath.Abs(folder)
	if err != nil {
		abs = folder
	}
	c := &Cache{file: filepath.Join(dir, string(digestOf([]byte(abs)))[:32]+".json"), old: map[string]cached{}, current: map[string]cached{}}
	if b, err := os.ReadFile(c.file); err == nil {
		if json.Unmarshal(b, &c.old) != nil {
			c.old = map[string]cached{}
		}
	}
	return c
}

func (c *Cache) lookup(p string, info fs.FileInfo) (Digest, bool) {
	if c == nil {
		return "", false
	}
	now, ok := identity(info)
	if !ok {
		return "", false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	have, ok := c.old[p]
	now.Digest = have.Digest
	if !ok || have != now || !have.Digest.Valid() {
		return "", false
	}
	c.current[p] = have
	return have.Digest, true
}

func (c *Cache) remember(p string, info fs.FileInfo, d Digest) {
	if c == nil {
		return
	}
	now, ok := identity(info)
	if !ok || time.Since(time.Unix(0, max(now.MTime, now.CTime))) < racy {
		return
	}
	now.Digest = d
	c.mu.Lock()
	defer c.mu.Unlock()
	c.current[p] = now
}

// Save stores the digests of the files that this walk saw.
func (c *Cache) Save() error {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	b, err := json.Marshal(c.current)
	if err != nil {
		return errs.New(errs.Internal, "digest cache: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(c.file), 0o700); err != nil {
		return errs.New(errs.Unavailable, "digest cache: %w", err)
	}
	if err := atomicfile.Write(c.file, b, 0o600, atomicfile.Volatile); err != nil {
		return errs.New(errs.Unavailable, "digest cache: %w", err)
	}
	return nil
}
