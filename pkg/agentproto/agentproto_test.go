package agentproto

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"
)

// decoders holds every decoder with an example of its message.
var decoders = []struct {
	name    string
	example interface{ Append([]byte) []byte }
	decode  func([]byte) (any, error)
}{
	{"hello", Hello{1, 3, "token", 77, Main{MainExited, 5, 123, Exit{137, 9, -1, "why"}}}, func(b []byte) (any, error) { return DecodeHello(b) }},
	{"welcome", Welcome{1, -5, 1e9, "no"}, func(b []byte) (any, error) { return DecodeWelcome(b) }},
	{"main", Main{MainRunning, 1, 2, Exit{}}, func(b []byte) (any, error) { return DecodeMain(b) }},
	{"failure", Failure{Wrong, "why", 3}, func(b []byte) (any, error) { return DecodeFailure(b) }},
	{"reply", Reply{Failure{NotStarted, "text", 127}, []Listener{{80, "\x7f\x00\x00\x01"}, {443, strings.Repeat("\x00", 16)}}}, func(b []byte) (any, error) { return DecodeReply(b) }},
	{"process", Process{[]string{"a", ""}, []string{"B=c"}, "/d", "u:g", true, Size{1, 65535}, true, "t"}, func(b []byte) (any, error) { return DecodeProcess(b) }},
	{"process info", ProcessInfo{1, 2, 3, true, true, true, Exit{Code: 3}, "tag", []string{"a"}}, func(b []byte) (any, error) { return DecodeProcessInfo(b) }},
	{"dial", Dial{65535}, func(b []byte) (any, error) { return DecodeDial(b) }},
	{"activity", Activity{1, 2, 3}, func(b []byte) (any, error) { return DecodeActivity(b) }},
	{"file read", FileRead{View{"u", []string{"/r"}}, "/p", 1, 2}, func(b []byte) (any, error) { return DecodeFileRead(b) }},
	{"file write", FileWrite{View{"u", nil}, "/p", WriteAppend, 2, 0o644, true}, func(b []byte) (any, error) { return DecodeFileWrite(b) }},
	{"file op", FileOp{View{"", []string{"/"}}, OpMove, "/p", "/q", 1, true, []byte("v"), "a", 7, 8, -9, 10}, func(b []byte) (any, error) { return DecodeFileOp(b) }},
	{"file space", FileSpace{1, 2, 3, 4}, func(b []byte) (any, error) { return DecodeFileSpace(b) }},
	{"file info", FileInfo{"n", 0o100644, 1, -2, 3, 4, "t", []string{"k", "v"}}, func(b []byte) (any, error) { return DecodeFileInfo(b) }},
	{"strings", Strings{"a", ""}, func(b []byte) (any, error) { return DecodeStrings(b) }},
	{"size", Size{24, 80}, func(b []byte) (any, error) { return DecodeSize(b) }},
	{"open", Open{KindProcess, LifeDetached, 7, []byte("params")}, func(b []byte) (any, error) { return DecodeOpen(b) }},
	{"resume", Resume{Position{1, 2}, Position{3, 1 << 60}}, func(b []byte) (any, error) { return DecodeResume(b) }},
	{"opened", Opened{true, 1, 2, 3, 4, []byte("info")}, func(b []byte) (any, error) { return DecodeOpened(b) }},
	{"done", Done{Failure{NotFound, "why", 0}, 10, 20, []byte("result")}, func(b []byte) (any, error) { return DecodeDone(b) }},
	{"configure", Configure{"c", "host", []string{"A=b"}, "/w", "u", 7, 2, true}, func(b []byte) (any, error) { return DecodeConfigure(b) }},
	{"number", Number(1 << 40), func(b []byte) (any, error) { n, err := DecodeNumber(b); return Number(n), err }},
	{"identity", Identity{[]IdentityFile{{"/etc/hosts", "a\nb\n", "c\n"}, {"", "", ""}}, "fork"}, func(b []byte) (any, error) { return DecodeIdentity(b) }},
	{"config", Config{"t", []string{"c"}, []string{"E=f"}, "/w", "u", StartOnRequest, 10, -1, true, "agent-1", 3, 1 << 31}, func(b []byte) (any, error) { return DecodeConfig(b) }},
}

func TestMessagesRoundTrip(t *testing.T) {
	for _, d := range decoders {
		b := d.example.Append(nil)
		got, err := d.decode(b)
		if err != nil || !reflect.DeepEqual(got, d.example) {
			t.Errorf("%s: %+v %v, want %+v", d.name, got, err, d.example)
		}
		if got, err = d.decode(append(b, "later fields"...)); err != nil || !reflect.DeepEqual(got, d.example) {
			t.Errorf("%s of a newer peer: %+v %v", d.name, got, err)
		}
		for n := range b { // an older peer, or garbage: no panic
			_, _ = d.decode(b[:n])
		}
	}
}

func FuzzMessages(f *testing.F) {
	for _, d := range decoders {
		f.Add(d.example.Append(nil))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, d := range decoders {
			m, err := d.decode(b)
			if err != nil {
				continue
			}
			again, err := d.decode(m.(interface{ Append([]byte) []byte }).Append(nil))
			if err != nil || !reflect.DeepEqual(m, again) {
				t.Errorf("%s: %+v is %+v after encoding, %v", d.name, m, again, err)
			}
		}
	})
}

func FuzzProcesses(f *testing.F) {
	f.Add(Processes{{ID: 1, Command: []string{"a"}}, {ID: 2}}.Append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := DecodeProcesses(b)
		if err != nil {
			return
		}
		if again, err := DecodeProcesses(m.Append(nil)); err != nil || !reflect.DeepEqual(m, again) {
			t.Errorf("%+v is %+v after encoding, %v", m, again, err)
		}
	})
}

func FuzzReader(f *testing.F) {
	f.Add(AppendFrame(AppendData(nil, TData, 1, 2, 3, []byte("data")), Frame{Type: TPing, ID: 9}))
	f.Add([]byte{255, 255, 255, 255})
	f.Fuzz(func(t *testing.T, b []byte) {
		var encoded []byte
		r := NewReader(iotest.OneByteReader(bytes.NewReader(b)), 1<<12)
		for {
			fr, err := r.Read()
			if err != nil {
				if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, ErrTooBig) {
					t.Fatal(err)
				}
				break
			}
			_, _, _ = fr.Data()
			encoded = AppendFrame(encoded, fr)
		}
		if !bytes.HasPrefix(b, encoded) {
			t.Errorf("%x read as %x", b, encoded)
		}
	})
}

func FuzzRecord(f *testing.F) {
	f.Add([]byte("1700000000000000000 o. text"))
	f.Add([]byte("exit 3 signal 0 at 5 message \"x\"\n"))
	f.Add([]byte("0000000000001000.log"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if r, err := ParseRecord(b); err == nil && bytes.IndexByte(b, '\n') < 0 {
			again, err := ParseRecord(bytes.TrimSuffix(r.Append(nil), []byte("\n")))
			if err != nil || !reflect.DeepEqual(r, again) {
				t.Errorf("%+v is %+v, %v", r, again, err)
			}
		}
		if e, err := ParseExitFile(b); err == nil {
			line := AppendExitFile(nil, e)
			if again, err := ParseExitFile(line); err != nil || len(line) > MaxExitFile || len(e.Message) <= 512 && again != e {
				t.Errorf("%+v is %+v, %v", e, again, err)
			}
		}
		if at, ok := ParseSegmentName(string(b)); ok && SegmentName(at) != string(b) {
			t.Errorf("%q is %d", b, at)
		}
	})
}

func TestReaderBounds(t *testing.T) {
	big := AppendFrame(nil, Frame{Type: TData, Payload: make([]byte, 100)})
	if _, err := NewReader(bytes.NewReader(big), 99).Read(); !errors.Is(err, ErrTooBig) {
		t.Errorf("got %v", err)
	}
	if _, err := NewReader(bytes.NewReader(big[:50]), 100).Read(); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("got %v", err)
	}
	if _, err := NewReader(bytes.NewReader(nil), 100).Read(); !errors.Is(err, io.EOF) {
		t.Errorf("got %v", err)
	}
}

func TestRingKeepsNewestBytes(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	r := NewRing(5, 1<<13)
	var all []byte // from offset 5
	for range 20000 {
		if rnd.IntN(2) == 0 {
			b := make([]byte, rnd.IntN(3000))
			for i := range b {
				b[i] = byte(rnd.Uint32())
			}
			all = append(all, b[:r.Add(b)]...)
		} else {
			r.Drop(r.Base() + int64(rnd.IntN(4000)))
		}
		if r.End() != int64(len(all))+5 || r.Len() > 1<<13 || r.Len()+r.Room() != 1<<13 {
			t.Fatalf("%d to %d, added %d", r.Base(), r.End(), len(all))
		}
		if r.Len() == 0 {
			continue
		}
		at := r.Base() + rnd.Int64N(int64(r.Len()))
		got := r.At(at, rnd.IntN(5000)+1)
		if len(got) == 0 || !bytes.HasPrefix(all[at-5:], got) {
			t.Fatalf("%d bytes at %d are others", len(got), at)
		}
	}
}

type slowWriter struct {
	bytes.Buffer
	gate chan struct{}
}

func (w *slowWriter) Write(b []byte) (int, error) {
	<-w.gate
	return w.Buffer.Write(b)
}
func (w *slowWriter) Close() error { return nil }

func TestWriterCoalesces(t *testing.T) {
	s := &slowWriter{gate: make(chan struct{}, 100)}
	w := NewWriter(s)
	ping := func(b []byte) []byte { return AppendFrame(b, Frame{Type: TPing}) }
	for range 50 {
		if err := w.Queue(ping); err != nil {
			t.Fatal(err)
		}
	}
	s.gate <- struct{}{}
	s.gate <- struct{}{}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	if s.Len() != 50*headerSize || len(s.gate) > 1 {
		t.Errorf("%d bytes", s.Len())
	}
	// A peer that does not read is given up, not waited for.
	big := func(b []byte) []byte { return append(b, make([]byte, 1<<20)...) }
	var err error
	for i := 0; err == nil && i < 100; i++ {
		err = w.Queue(big)
	}
	if err == nil {
		t.Error("no bound")
	}
	close(s.gate)
}
