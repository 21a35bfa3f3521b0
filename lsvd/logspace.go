package lsvd

import "miren.dev/runtime/lsvd/internal/wal"

// LogSpace is a budget of bytes for the local logs of several disks. Each may
// always have three log files; the rest is for those that write before the store
// has what they wrote, and is given back afterwards. While it is used up, writes
// that need more wait until the store has caught up.
type LogSpace struct{ space *wal.Space }

// LogSpaceStats are figures of a LogSpace.
type LogSpaceStats struct {
	Limit int64 // bytes
	Used  int64 // bytes of log files; above Limit only by what disks may always have, or had when they were opened
}

// NewLogSpace returns a budget of so many bytes.
func NewLogSpace(bytes int64) *LogSpace { return &LogSpace{wal.NewSpace(bytes)} }

// Stats returns the current figures.
func (s *LogSpace) Stats() LogSpaceStats {
	return LogSpaceStats{Limit: s.space.Limit(), Used: s.space.Used()}
}

// budget is what is behind s; nil if there is none.
func (s *LogSpace) budget() *wal.Space {
	if s == nil {
		return nil
	}
	return s.space
}
