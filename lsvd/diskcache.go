package lsvd

import (
	"log/slog"

	"miren.dev/runtime/lsvd/internal/diskcache"
	"miren.dev/runtime/lsvd/vfs"
)

// DiskCache keeps data of segments in a bounded local directory. One serves
// all disks of a process: what clones share is in it once. It is warm after a
// restart, every read from it is verified, and when its disk is full or fails,
// disks go on without it. Its data is not encrypted.
type DiskCache struct{ c *diskcache.Cache }

// DiskCacheStats are figures of a disk cache.
type DiskCacheStats = diskcache.Stats

// OpenDiskCache opens the directory fs, which nothing else may use, as a cache
// of at most so many bytes. With fewer than before it begins empty.
func OpenDiskCache(fs vfs.FS, bytes int64, logger *slog.Logger) (*DiskCache, error) {
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	c, err := diskcache.Open(fs, bytes, logger)
	if err != nil {
		return nil, err
	}
	return &DiskCache{c}, nil
}

// Close closes the directory. Disks that still use it go on without it.
func (c *DiskCache) Close() error { return c.c.Close() }

// Stats returns the current figures.
func (c *DiskCache) Stats() DiskCacheStats { return c.c.Stats() }

// cache is what is behind c; nil if there is none.
func (c *DiskCache) cache() *diskcache.Cache {
	if c == nil {
		return nil
	}
	return c.c
}
