package host

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"miren.dev/runtime/lsvd"
	"miren.dev/runtime/lsvd/internal/wal"
	"miren.dev/runtime/pkg/errs"
)

// LogFile is one file of a local log, by its header.
type LogFile struct {
	Name       string `json:"name"`
	Size       int64  `json:"size_bytes"`
	Valid      bool   `json:"valid"` // its header is intact; if not, it is new, or waits to be used again
	Volume     string `json:"volume,omitempty"`
	Epoch      uint64 `json:"epoch"`
	Generation uint64 `json:"generation"`
	First      uint64 `json:"first"` // sequence number of its first record
	PrevEpoch  uint64 `json:"previous_epoch"`
	PrevSeq    uint64 `json:"previous_sequence"` // last of the epoch before
}

// LogFiles lists the log of a volume on this machine. It does not lock it.
func (s *State) LogFiles(id lsvd.ID) ([]LogFile, error) {
	entries, err := os.ReadDir(s.LogDir(id))
	if errors.Is(err, fs.ErrNotExist) {
		return []LogFile{}, nil
	}
	if err != nil {
		return nil, errs.Wrap(err, "read the log of %s", id)
	}
	out := []LogFile{}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), "log-") {
			continue
		}
		f, err := os.Open(filepath.Join(s.LogDir(id), e.Name()))
		if errors.Is(err, fs.ErrNotExist) {
			continue // recycled meanwhile
		}
		if err != nil {
			return nil, errs.Wrap(err, "read the log of %s", id)
		}
		x := LogFile{Name: e.Name()}
		head := make([]byte, lsvd.BlockSize)
		n, err := f.ReadAt(head, 0)
		if info, serr := f.Stat(); serr == nil {
			x.Size = info.Size()
		}
		f.Close()
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, errs.Wrap(err, "read the log of %s", id)
		}
		if h, err := wal.DecodeHeader(head[:n]); err == nil {
			x.Valid, x.Volume, x.Epoch, x.Generation, x.First, x.PrevEpoch, x.PrevSeq = true, h.Volume.String(), h.Epoch, h.Generation, h.First, h.PrevEpoch, h.PrevSeq
		}
		out = append(out, x)
	}
	return out, nil
}
