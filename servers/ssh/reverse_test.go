package sshserver

import (
	"bytes"
	"encoding/binary"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/pkg/agentproto"
	"miren.dev/runtime/pkg/rpc"
)

// TestFramesOfAListener: they are complete only with the frame that ends them,
// and the sandbox cannot make the gateway wait for a frame without bound.
func TestFramesOfAListener(t *testing.T) {
	frame := func(s string) string { return string(binary.BigEndian.AppendUint32(nil, uint32(len(s)))) + s }
	big := strings.Repeat("x", agentproto.Chunk)
	whole := frame("one") + frame(big) + frame("")
	for _, r := range []io.Reader{strings.NewReader(whole), iotest.OneByteReader(strings.NewReader(whole))} {
		if b, err := io.ReadAll(&frames{r: r}); err != nil || string(b) != "one"+big {
			t.Errorf("%d bytes, %v", len(b), err)
		}
	}
	for _, n := range []int{0, 2, 6, 7, 12, len(whole) - 1} {
		if _, err := io.ReadAll(&frames{r: strings.NewReader(whole[:n])}); err != io.ErrUnexpectedEOF {
			t.Errorf("cut after %d bytes: %v", n, err)
		}
	}
	if _, err := io.ReadAll(&frames{r: strings.NewReader(frame(big + "x"))}); err == nil {
		t.Error("a frame that is too large is read")
	}
}

// outputs is the output of a process, message by message.
type outputs struct {
	rpc.ClientStream[sandbox.ExecInput, sandbox.ExecOutput]
	list []sandbox.ExecOutput
}

func (o *outputs) Recv() (*sandbox.ExecOutput, error) {
	if len(o.list) == 0 {
		return nil, io.EOF
	}
	m := &o.list[0]
	o.list = o.list[1:]
	return m, nil
}

// TestLinesOfAListener: lines come in any parts; one without an end is refused.
func TestLinesOfAListener(t *testing.T) {
	code := int64(3)
	l := &lines{st: &outputs{list: []sandbox.ExecOutput{{Stdout: []byte("fir")}, {Stderr: []byte("x")}, {Stdout: []byte("st\nsecond\nth")}, {ExitCode: &code}}}}
	for _, want := range []string{"first", "second"} {
		if got, err := l.next(); err != nil || got != want {
			t.Errorf("%q, %v", got, err)
		}
	}
	if got, err := l.next(); err == nil || !strings.Contains(err.Error(), "code 3") {
		t.Errorf("%q, %v", got, err)
	}
	endless := &outputs{}
	for range 100 {
		endless.list = append(endless.list, sandbox.ExecOutput{Stdout: bytes.Repeat([]byte("x"), 100)})
	}
	if got, err := (&lines{st: endless}).next(); err == nil || err == io.EOF {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}
