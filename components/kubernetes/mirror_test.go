package kubernetes

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"miren.dev/runtime/pkg/agentproto"
)

func frames(list ...agentproto.PodFrame) *bytes.Reader {
	var b []byte
	for _, f := range list {
		b = f.Append(b)
	}
	return bytes.NewReader(b)
}

// A log that is received in parts, by several connections, is that of the pod.
func TestMirrorContinues(t *testing.T) {
	dir := t.TempDir()
	exits := 0
	for _, part := range []*bytes.Reader{
		frames(agentproto.PodFrame{Type: agentproto.PodSegment}, agentproto.PodFrame{Type: agentproto.PodLog, Payload: []byte("1 o. a\n")}),
		frames(agentproto.PodFrame{Type: agentproto.PodSegment}, agentproto.PodFrame{Type: agentproto.PodLog, Offset: 7, Payload: []byte("2 o. b\n")},
			agentproto.PodFrame{Type: agentproto.PodSegment, Offset: 20}, agentproto.PodFrame{Type: agentproto.PodLog, Offset: 20, Payload: []byte("3 o. c\n")},
			agentproto.PodFrame{Type: agentproto.PodExit, Offset: 27, Payload: []byte("exit")}),
	} {
		m, err := openMirror(dir)
		if err != nil {
			t.Fatal(err)
		}
		if err := m.receive(part, func() { exits++ }); err != nil {
			t.Error(err)
		}
		m.close()
	}
	for name, want := range map[string]string{
		agentproto.SegmentName(0): "1 o. a\n2 o. b\n", agentproto.SegmentName(20): "3 o. c\n", agentproto.ExitName: "exit",
	} {
		if b, err := os.ReadFile(filepath.Join(dir, name)); string(b) != want || err != nil {
			t.Errorf("%s is %q, %v", name, b, err)
		}
	}
	if exits != 1 {
		t.Errorf("%d exits", exits)
	}
}

// What a pod sends can neither go back nor fill the disk.
func TestMirrorRefuses(t *testing.T) {
	log := func(at int64, n int) agentproto.PodFrame {
		return agentproto.PodFrame{Type: agentproto.PodLog, Offset: at, Payload: make([]byte, n)}
	}
	segment := func(at int64) agentproto.PodFrame {
		return agentproto.PodFrame{Type: agentproto.PodSegment, Offset: at}
	}
	for name, f := range map[string][]agentproto.PodFrame{
		"records without a segment": {log(0, 1)},
		"a segment within another":  {segment(10), log(10, 5), segment(12)},
		"a gap":                     {segment(0), log(1, 1)},
		"what was sent":             {segment(0), log(0, 2), log(1, 1)},
		"a large exit record":       {{Type: agentproto.PodExit, Payload: make([]byte, agentproto.MaxExitFile+1)}},
		"an unknown frame":          {{Type: 'Z'}},
		"an error":                  {{Type: agentproto.PodError, Payload: []byte("x")}},
	} {
		m, err := openMirror(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		if err := m.receive(frames(f...), func() {}); err == nil {
			t.Errorf("%s is accepted", name)
		}
		m.close()
	}
	dir := t.TempDir()
	m, err := openMirror(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer m.close()
	for at := int64(0); at < 4*logBytes; at += agentproto.MaxPodFrame {
		list := []agentproto.PodFrame{log(at, agentproto.MaxPodFrame)}
		if at%(1<<20) == 0 {
			list = append([]agentproto.PodFrame{segment(at)}, list...)
		}
		if err := m.receive(frames(list...), func() {}); err != nil {
			t.Fatal(err)
		}
	}
	var sum int64
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if info, err := e.Info(); err == nil {
			sum += info.Size()
		}
	}
	if sum > logBytes+1<<20 || sum < logBytes/2 {
		t.Errorf("the log has %d bytes with a bound of %d", sum, int64(logBytes))
	}
	if err := m.receive(frames(segment(4*logBytes), log(4*logBytes, 1)), func() {}); err != nil {
		t.Error(err)
	}
}
