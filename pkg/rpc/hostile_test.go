package rpc

import (
	"bytes"
	"encoding/binary"
	"io"
	"math"
	"net"
	"testing"
	"time"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/testsupport/wait"
)

func frame(h header, p []byte) []byte {
	h.length = len(p)
	return append(appendHeader(nil, h), p...)
}

func callFrame(id uint64, m *Method, flags uint8, body []byte) []byte {
	head := appendCallHeader(nil, &callHeader{method: m.Full})
	return frame(header{typ: frameCall, id: id, flags: flags}, append(head, body...))
}

func encoded(t testing.TB, v any) []byte {
	t.Helper()
	var b buffer
	if err := b.encode(v); err != nil {
		t.Fatal(err)
	}
	return b.b
}

// greet begins a connection as a client does, and bounds the time of the test.
func greet(t *testing.T, nc net.Conn) {
	t.Helper()
	if err := nc.SetDeadline(time.Now().Add(wait.Limit)); err != nil {
		t.Fatal(err)
	}
	if _, err := nc.Write(appendHello(nil, Limits{}.withDefaults().hello())); err != nil {
		t.Fatal(err)
	}
}

// TestHostileClient: a client that breaks the protocol loses its connection,
// and no other connection is affected.
func TestHostileClient(t *testing.T) {
	r := newFixture(t, "unix", Limits{})
	cl := r.dial(t)
	hi := appendHello(nil, Limits{}.withDefaults().hello())
	window := func(id uint64, n uint32) []byte {
		return frame(header{typ: frameWindow, id: id}, binary.BigEndian.AppendUint32(nil, n))
	}
	sink := append(bytes.Clone(hi), callFrame(1, mHold, 0, encoded(t, &echoMsg{}))...)
	tooMuch := bytes.Clone(sink)
	for range 3 {
		tooMuch = append(tooMuch, frame(header{typ: frameData, id: 1}, make([]byte, 30<<10))...)
	}
	overflow := bytes.Clone(hi)
	for range 300 {
		overflow = append(overflow, window(0, math.MaxUint32)...)
	}
	streamOverflow := bytes.Clone(sink)
	for range 300 {
		streamOverflow = append(streamOverflow, window(1, math.MaxUint32)...)
	}
	oldHello := Limits{}.withDefaults().hello()
	oldHello.version, oldHello.minVersion = 9, 7
	greedy := Limits{}.withDefaults().hello()
	greedy.streamWindow = 1
	for name, b := range map[string][]byte{
		"http":              []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
		"garbage":           bytes.Repeat([]byte{0xff}, 100),
		"oversize frame":    appendHeader(bytes.Clone(hi), header{typ: frameData, length: maxPayload + 1, id: 1}),
		"other version":     appendHello(nil, oldHello),
		"tiny window":       appendHello(nil, greedy),
		"long hello":        frame(header{typ: frameHello}, append([]byte(magic+"\x01\x01"), make([]byte, 300)...)),
		"cut hello":         frame(header{typ: frameHello}, []byte(magic+"\x01\x01\x80")),
		"second hello":      append(bytes.Clone(hi), hi...),
		"unknown type":      append(bytes.Clone(hi), frame(header{typ: 99}, nil)...),
		"even id":           append(bytes.Clone(hi), callFrame(2, mEcho, 0, nil)...),
		"id again":          append(append(bytes.Clone(hi), callFrame(3, mEcho, 0, nil)...), callFrame(3, mEcho, 0, nil)...),
		"id goes back":      append(append(bytes.Clone(hi), callFrame(3, mEcho, 0, nil)...), callFrame(1, mEcho, 0, nil)...),
		"empty call":        append(bytes.Clone(hi), frame(header{typ: frameCall, id: 1}, nil)...),
		"cut call header":   append(bytes.Clone(hi), frame(header{typ: frameCall, id: 1}, []byte{hasTimeout, 200, 'x'})...),
		"two bodies":        append(bytes.Clone(hi), callFrame(1, mEcho, flagBody, []byte{1})...),
		"data for no call":  append(bytes.Clone(hi), frame(header{typ: frameData, id: 7}, []byte("x"))...),
		"cancel of no call": append(bytes.Clone(hi), frame(header{typ: frameCancel, id: 7}, nil)...),
		"window of no call": append(bytes.Clone(hi), window(7, 1)...),
		"cut window":        append(bytes.Clone(hi), frame(header{typ: frameWindow}, []byte{1})...),
		"cut ping":          append(bytes.Clone(hi), frame(header{typ: framePing}, []byte{1})...),
		"reply":             append(bytes.Clone(hi), frame(header{typ: frameReply, id: 1}, nil)...),
		"goaway":            append(bytes.Clone(hi), frame(header{typ: frameGoAway, id: 1}, nil)...),
		"beyond window":     tooMuch,
		"window overflow":   overflow,
		"stream overflow":   streamOverflow,
		"data after end": append(append(bytes.Clone(sink), frame(header{typ: frameData, flags: flagEnd, id: 1}, nil)...),
			frame(header{typ: frameData, id: 1}, []byte("x"))...),
	} {
		t.Run(name, func(t *testing.T) {
			nc, err := net.Dial("unix", r.target)
			if err != nil {
				t.Fatal(err)
			}
			defer nc.Close()
			go func() { _, _ = nc.Write(b) }()
			if err := nc.SetReadDeadline(time.Now().Add(wait.Limit)); err != nil {
				t.Fatal(err)
			}
			if _, err := io.Copy(io.Discard, nc); errs.Is(err, errs.DeadlineExceeded) {
				t.Fatal("the server goes on talking to it")
			}
		})
	}
	if _, err := call(t, cl, mEcho, &echoMsg{}); err != nil {
		t.Fatal(err)
	}
	wait.For(t, "the connections to end", func() bool { return r.conns() == 1 })
}

// TestHostileMessages: a malformed message fails its call, and the connection
// continues.
func TestHostileMessages(t *testing.T) {
	r := newFixture(t, "unix", Limits{})
	nc, err := net.Dial("unix", r.target)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	greet(t, nc)
	large := func(total uint32, flags uint8, p []byte) []byte {
		return append(binary.BigEndian.AppendUint32(nil, total), p...)
	}
	id := uint64(1)
	rd := newFrameReader(nc)
	for name, frames := range map[string]func(id uint64) []byte{
		"not cbor":   func(id uint64) []byte { return callFrame(id, mEcho, 0, []byte{0xff, 0xff}) },
		"wrong type": func(id uint64) []byte { return callFrame(id, mEcho, 0, encoded(t, map[int]any{1: 5})) },
		"deep":       func(id uint64) []byte { return callFrame(id, mEcho, 0, bytes.Repeat([]byte{0x81}, 1000)) },
		"huge array": func(id uint64) []byte { return callFrame(id, mEcho, 0, []byte{0x9b, 0xff, 0, 0, 0, 0, 0, 0, 0}) },
		"trailing":   func(id uint64) []byte { return callFrame(id, mEcho, 0, append(encoded(t, &echoMsg{}), 1)) },
		"empty":      func(id uint64) []byte { return callFrame(id, mEcho, 0, nil) },
		"unknown":    func(id uint64) []byte { return frame(header{typ: frameCall, id: id}, []byte{0, 1, 'x'}) },
		"past deadline": func(id uint64) []byte {
			h := appendCallHeader(nil, &callHeader{method: mBlock.Full, timeout: 1})
			return frame(header{typ: frameCall, id: id}, append(h, encoded(t, &echoMsg{})...))
		},
		"too long": func(id uint64) []byte {
			return append(callFrame(id, mEcho, flagBody, nil),
				frame(header{typ: frameData, id: id, flags: flagLarge | flagMore}, large(1<<31, 0, []byte("x")))...)
		},
		"longer than said": func(id uint64) []byte {
			b := append(callFrame(id, mEcho, flagBody, nil), frame(header{typ: frameData, id: id, flags: flagLarge | flagMore}, large(3, 0, []byte("x")))...)
			return append(b, frame(header{typ: frameData, id: id}, []byte("xyz"))...)
		},
		"shorter than said": func(id uint64) []byte {
			b := append(callFrame(id, mEcho, flagBody, nil), frame(header{typ: frameData, id: id, flags: flagLarge | flagMore}, large(9, 0, []byte("x")))...)
			return append(b, frame(header{typ: frameData, id: id}, []byte("xyz"))...)
		},
		"ends within": func(id uint64) []byte {
			b := append(callFrame(id, mEcho, flagBody, nil), frame(header{typ: frameData, id: id, flags: flagLarge | flagMore}, large(9, 0, []byte("x")))...)
			return append(b, frame(header{typ: frameData, id: id, flags: flagEnd}, nil)...)
		},
		"no length": func(id uint64) []byte {
			return append(callFrame(id, mEcho, flagBody, nil), frame(header{typ: frameData, id: id, flags: flagLarge | flagMore}, []byte{1})...)
		},
		"optional frame before": func(id uint64) []byte {
			return append(frame(header{typ: 99, flags: flagOptional}, []byte("later")), callFrame(id, mFail, 0, encoded(t, &echoMsg{Text: "conflict"}))...)
		},
	} {
		before := r.echo.calls.Load()
		if _, err := nc.Write(frames(id)); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for {
			h, p, err := rd.next()
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if h.typ != frameReply {
				continue
			}
			if h.id != id || h.flags&flagError == 0 {
				t.Fatalf("%s: %+v", name, h)
			}
			if err := parseError(p); errs.Is(err, errs.Internal) {
				t.Errorf("%s: %v", name, err)
			}
			break
		}
		id += 2
		// The microsecond of the deadline may pass after its handler was entered.
		if n := r.echo.calls.Load() - before; n != 0 && name != "past deadline" {
			t.Errorf("%s: %d handlers were entered", name, n)
		}
	}
	wait.For(t, "windows to be whole", func() bool { c := r.serverConn(t); return c.settled() })
}

// TestAssemblyIsBounded: messages that are being assembled wait for the budget
// of their connection, and a caller that stops in the middle delays only
// itself.
func TestAssemblyIsBounded(t *testing.T) {
	r := newFixture(t, "unix", Limits{MaxMessage: 1 << 20, Assembly: 2 << 20})
	cl := r.dial(t)
	c := cl.cur.Load()
	// Two calls announce 1 MiB each and stop.
	var stuck []*stream
	for range 2 {
		st := &stream{notify: make(chan struct{}, 1), sendReady: make(chan struct{}, 1)}
		b := &buffer{b: make([]byte, 1<<20)}
		if err := c.start(t.Context(), st, &mEcho.MethodInfo, "", b); err != nil {
			t.Fatal(err)
		}
		if _, err := st.sendFrame(flagMore|flagLarge, binary.BigEndian.AppendUint32(nil, 1<<20), make([]byte, 100<<10)); err != nil { // one chunk of it goes
			t.Fatal(err)
		}
		stuck = append(stuck, st)
	}
	sc := r.serverConn(t)
	wait.For(t, "the budget to be used", func() bool {
		if sc.assembly.TryAcquire(1) {
			sc.assembly.Release(1)
			return false
		}
		return true
	})
	done := make(chan error, 1)
	go func() {
		_, err := call(t, cl, mEcho, &echoMsg{Data: make([]byte, 500<<10)})
		done <- err
	}()
	if _, err := call(t, cl, mEcho, &echoMsg{Data: make([]byte, 20<<10)}); err != nil {
		t.Fatal(err)
	}
	if _, err := call(t, r.dial(t), mEcho, &echoMsg{Data: make([]byte, 500<<10)}); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-done:
		t.Fatalf("a call went beyond the budget: %v", err)
	default:
	}
	for _, st := range stuck {
		st.cancelWith(errClosed)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// FuzzFrames: the reader accepts arbitrary bytes in arbitrary pieces, and
// returns the frames that the bytes hold.
func FuzzFrames(f *testing.F) {
	f.Add(appendHello(nil, Limits{}.withDefaults().hello()), uint8(3))
	f.Add(callFrame(1, mEcho, 0, []byte{0xa0}), uint8(1))
	f.Add(appendHeader(nil, header{typ: frameData, length: maxPayload + 1}), uint8(200))
	f.Fuzz(func(t *testing.T, b []byte, piece uint8) {
		rd := newFrameReader(&pieces{b: b, n: int(piece) + 1})
		var again []byte
		for {
			h, p, err := rd.next()
			if err != nil {
				break
			}
			if h.length != len(p) || len(p) > maxPayload {
				t.Fatalf("%+v with %d bytes", h, len(p))
			}
			again = append(append(again, appendHeader(nil, h)...), p...)
			if h.typ == frameHello {
				if hi, err := parseHello(h, p); err == nil {
					parsed, err := parseHello(header{typ: frameHello}, appendHello(nil, hi)[headerLen:])
					if err != nil || parsed != hi {
						t.Fatalf("%+v became %+v, %v", hi, parsed, err)
					}
				}
			}
			if c, rest, ok := parseCallHeader(p); ok && len(rest) > len(p) {
				t.Fatalf("%+v", c)
			}
		}
		if !bytes.HasPrefix(b, again) {
			t.Fatal("the frames are not what was sent")
		}
	})
}

// pieces is a reader that returns at most n bytes at a time.
type pieces struct {
	b []byte
	n int
}

func (p *pieces) Read(b []byte) (int, error) {
	if len(p.b) == 0 {
		return 0, io.EOF
	}
	n := copy(b[:min(len(b), p.n)], p.b)
	p.b = p.b[n:]
	return n, nil
}

// FuzzServer sends a server arbitrary bytes after HELLO: the server must
// neither panic nor hang, and must serve correctly afterwards.
func FuzzServer(f *testing.F) {
	f.Add(callFrame(1, mEcho, 0, []byte{0xa0}))
	f.Add(append(callFrame(1, mChat, 0, []byte{0xa0}), frame(header{typ: frameData, id: 1}, []byte{0xa0})...))
	f.Add(append(callFrame(1, mSink, flagBody, nil), frame(header{typ: frameData, id: 1, flags: flagLarge | flagMore}, []byte{0, 0, 0, 9, 1})...))
	f.Add(append(callFrame(5, mCount, 0, []byte{0xa1, 3, 5}), frame(header{typ: frameCancel, id: 5}, nil)...))
	srv, err := NewServer(ServerOptions{Authorizer: DefaultRoles})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(srv.Close)
	echo := newEchoServer()
	close(echo.release)
	svc := &Service{Name: "test.Echo"}
	for _, m := range echoService.Methods {
		if m != mBlock && m != mHold { // they fill a channel that is not read here
			svc.Methods = append(svc.Methods, m)
		}
	}
	srv.Register(svc, echo)
	hi := appendHello(nil, Limits{}.withDefaults().hello())
	f.Fuzz(func(t *testing.T, b []byte) {
		near, far, err := socketPair()
		if err != nil {
			t.Fatal(err)
		}
		defer near.Close()
		if !srv.adopt(far, classLocal, func(nc net.Conn) (net.Conn, Identity, error) {
			return nc, Identity{Name: "fuzz", Roles: []string{RoleAdmin}, How: "process"}, nil
		}) {
			t.Fatal("not adopted")
		}
		go func() {
			_, _ = near.Write(append(bytes.Clone(hi), b...))
			_ = near.(*net.UnixConn).CloseWrite()
		}()
		if err := near.SetReadDeadline(time.Now().Add(wait.Limit)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, near); errs.Is(err, errs.DeadlineExceeded) {
			t.Fatal("the server hangs")
		}
	})
}
