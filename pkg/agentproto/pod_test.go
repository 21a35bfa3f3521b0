package agentproto

import (
	"bytes"
	"errors"
	"io"
	"testing"
)

func FuzzPodFrame(f *testing.F) {
	f.Add(PodFrame{Type: PodLog, Offset: 7, Payload: []byte("text")}.Append(nil))
	f.Add(PodFrame{Type: PodSegment, Offset: 1 << 40}.Append(nil))
	f.Add([]byte{PodLog, 0, 0, 0, 0, 0, 0, 0, 0xff, 1, 0, 0, 0, 'x'})
	f.Fuzz(func(t *testing.T, b []byte) {
		const limit = 64
		m, err := ReadPodFrame(bytes.NewReader(b), limit)
		if err != nil {
			return
		}
		if m.Offset < 0 || len(m.Payload) > limit {
			t.Fatalf("beyond the bounds: %+v", m)
		}
		if again := m.Append(nil); !bytes.HasPrefix(b, again) {
			t.Fatalf("%x is not the beginning of %x", again, b)
		}
	})
}

func TestPodFrameBounds(t *testing.T) {
	b := PodFrame{Type: PodLog, Payload: make([]byte, 65)}.Append(nil)
	if _, err := ReadPodFrame(bytes.NewReader(b), 64); !errors.Is(err, ErrMalformed) {
		t.Errorf("a payload that is too long: %v", err)
	}
	if _, err := ReadPodFrame(bytes.NewReader(b[:20]), 65); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("a cut payload: %v", err)
	}
	if _, err := ReadPodFrame(bytes.NewReader(nil), 65); !errors.Is(err, io.EOF) {
		t.Errorf("no frame: %v", err)
	}
}
