package kubernetes

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/pkg/agentproto"
	"miren.dev/runtime/pkg/atomicfile"
)

// mirror is the copy of a sandbox's log, in files as the agent writes them
// (pkg/agentproto, logrecord.go). What comes from the pod is not trusted: no offset
// goes back, and the files have the bounds of the agent's.
type mirror struct {
	dir    string
	starts []int64 // of the segments, oldest first
	f      *os.File
	size   int64 // of the last segment
}

func openMirror(dir string) (*mirror, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	m := &mirror{dir: dir}
	for _, e := range entries {
		if at, ok := agentproto.ParseSegmentName(e.Name()); ok {
			m.starts = append(m.starts, at)
		}
	}
	slices.Sort(m.starts)
	if len(m.starts) == 0 {
		return m, nil
	}
	st, err := os.Stat(m.path(m.start()))
	if err != nil {
		return nil, err
	}
	m.size = st.Size()
	return m, m.open()
}

func (m *mirror) path(start int64) string {
	return filepath.Join(m.dir, agentproto.SegmentName(start))
}

func (m *mirror) start() int64 { return m.starts[len(m.starts)-1] }

// end is the offset after the last byte.
func (m *mirror) end() int64 {
	if len(m.starts) == 0 {
		return 0
	}
	return m.start() + m.size
}

func (m *mirror) open() (err error) {
	m.f, err = os.OpenFile(m.path(m.start()), os.O_WRONLY|os.O_CREATE|os.O_APPEND|unix.O_NOFOLLOW, 0o600)
	return err
}

func (m *mirror) close() {
	if m.f != nil {
		m.f.Close()
	}
}

// receive writes what a relay sends until it ends. exited is called when the exit
// record is there.
func (m *mirror) receive(r io.Reader, exited func()) error {
	for {
		f, err := agentproto.ReadPodFrame(r, agentproto.MaxPodFrame)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		switch f.Type {
		case agentproto.PodSegment:
			err = m.begin(f.Offset)
		case agentproto.PodLog:
			err = m.write(f)
		case agentproto.PodExit:
			if len(f.Payload) > agentproto.MaxExitFile {
				return agentproto.ErrMalformed
			}
			err = atomicfile.Write(filepath.Join(m.dir, agentproto.ExitName), f.Payload, 0o600)
			if err == nil {
				exited()
			}
		case agentproto.PodError:
			err = errRelay(f.Payload)
		default:
			err = agentproto.ErrMalformed
		}
		if err != nil {
			return err
		}
	}
}

// begin begins a segment, unless it is the one that is being written.
func (m *mirror) begin(start int64) error {
	if len(m.starts) > 0 && start == m.start() {
		return nil
	}
	if start < m.end() {
		return agentproto.ErrMalformed
	}
	m.close()
	m.starts, m.size = append(m.starts, start), 0
	if err := m.open(); err != nil {
		return err
	}
	for len(m.starts) > 1 && (start-m.starts[0] > logBytes-logBytes/8 || len(m.starts) > 16) {
		if err := os.Remove(m.path(m.starts[0])); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		m.starts = m.starts[1:]
	}
	return nil
}

func (m *mirror) write(f agentproto.PodFrame) error {
	if len(m.starts) == 0 || f.Offset != m.end() || m.size+int64(len(f.Payload)) > logBytes {
		return agentproto.ErrMalformed
	}
	n, err := m.f.Write(f.Payload)
	m.size += int64(n)
	return err
}
