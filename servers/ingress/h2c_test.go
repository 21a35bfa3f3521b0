package ingress

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"miren.dev/runtime/testsupport/wait"
)

// grpcApp plays a sandbox with a gRPC server.
type grpcApp struct {
	testpb.UnimplementedTestServiceServer
	canceled chan struct{}
	once     sync.Once
}

func (a *grpcApp) UnaryCall(ctx context.Context, req *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	_ = grpc.SetTrailer(ctx, metadata.Pairs("x-trailer", "end", "x-host", strings.Join(md.Get(":authority"), ","), "x-from", strings.Join(md.Get("x-forwarded-proto"), ",")))
	if st := req.GetResponseStatus(); st != nil {
		return nil, status.Error(codes.Code(st.Code), st.Message)
	}
	return &testpb.SimpleResponse{Payload: req.Payload}, nil
}

func (a *grpcApp) StreamingOutputCall(req *testpb.StreamingOutputCallRequest, s grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse]) error {
	for _, p := range req.ResponseParameters {
		if err := s.Send(&testpb.StreamingOutputCallResponse{Payload: &testpb.Payload{Body: make([]byte, p.Size)}}); err != nil {
			return err
		}
	}
	return nil
}

func (a *grpcApp) FullDuplexCall(s grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]) error {
	for {
		req, err := s.Recv()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			a.once.Do(func() { close(a.canceled) })
			return err
		}
		if err := s.Send(&testpb.StreamingOutputCallResponse{Payload: req.Payload}); err != nil {
			return err
		}
	}
}

// startGRPC runs an ingress with HTTPS in front of a gRPC server, which is on a runner if it connects to them.
func startGRPC(t *testing.T, cfg Config) (*secure, *grpcApp, testpb.TestServiceClient) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	a := &grpcApp{canceled: make(chan struct{})}
	srv := grpc.NewServer()
	testpb.RegisterTestServiceServer(srv, a)
	done := make(chan error, 1)
	go func() { done <- srv.Serve(l) }()
	t.Cleanup(func() {
		srv.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	s := startSecure(t, cfg)
	s.offer(t, "grpc.example.com", issue(t, s.ca, "p", 1, "grpc.example.com"))
	st := oneApp(l.Addr().String())
	st.Sandboxes[0].H2C = true
	st.Routes = []Route{{ID: "rt-1", Host: "grpc.example.com", Path: "/", App: "app-1"}}
	if cfg.DialService != nil {
		toRunner(st)
	}
	s.install(st)
	conn, err := grpc.NewClient("passthrough:///grpc.example.com", grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: s.ca.Pool()})),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", s.address())
		}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return s, a, testpb.NewTestServiceClient(conn)
}

func TestGRPC(t *testing.T) {
	s, a, c := startGRPC(t, Config{})
	ctx, cancel := context.WithTimeout(t.Context(), wait.Limit)
	defer cancel()
	t.Run("unary", func(t *testing.T) {
		for _, size := range []int{1, 1 << 20} {
			var trailer metadata.MD
			resp, err := c.UnaryCall(ctx, &testpb.SimpleRequest{Payload: &testpb.Payload{Body: make([]byte, size)}}, grpc.Trailer(&trailer))
			if err != nil || len(resp.Payload.Body) != size {
				t.Fatalf("%d bytes: %v", size, err)
			}
			if fmt.Sprint(trailer.Get("x-trailer"), trailer.Get("x-host"), trailer.Get("x-from")) != "[end] [grpc.example.com] [https]" {
				t.Errorf("trailers %v", trailer)
			}
		}
		_, err := c.UnaryCall(ctx, &testpb.SimpleRequest{})
		if err != nil {
			t.Fatal(err)
		}
		var trailer metadata.MD
		_, err = c.UnaryCall(ctx, &testpb.SimpleRequest{ResponseStatus: &testpb.EchoStatus{Code: int32(codes.FailedPrecondition), Message: "not today"}}, grpc.Trailer(&trailer))
		if st := status.Convert(err); st.Code() != codes.FailedPrecondition || st.Message() != "not today" || len(trailer.Get("x-trailer")) != 1 {
			t.Errorf("error %v, trailers %v", err, trailer)
		}
	})
	t.Run("server stream", func(t *testing.T) {
		req := &testpb.StreamingOutputCallRequest{}
		for range 100 {
			req.ResponseParameters = append(req.ResponseParameters, &testpb.ResponseParameters{Size: 10_000})
		}
		stream, err := c.StreamingOutputCall(ctx, req)
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for {
			_, err := stream.Recv()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			n++
		}
		if n != 100 {
			t.Errorf("%d messages", n)
		}
	})
	t.Run("both directions", func(t *testing.T) {
		one, stop := context.WithCancel(ctx)
		defer stop()
		stream, err := c.FullDuplexCall(one)
		if err != nil {
			t.Fatal(err)
		}
		for i := range 50 { // each answer comes before the next message is sent
			if err := stream.Send(&testpb.StreamingOutputCallRequest{Payload: &testpb.Payload{Body: []byte{byte(i)}}}); err != nil {
				t.Fatal(err)
			}
			if resp, err := stream.Recv(); err != nil || resp.Payload.Body[0] != byte(i) {
				t.Fatalf("%d: %v %v", i, resp, err)
			}
		}
		stop()
		wait.Receive(t, "the sandbox hears that the client left", a.canceled)
	})
	wait.For(t, "no request is counted", func() bool {
		return s.registry.inflight("")[s.table.Load().local["shop"][0].target.groups[0].backends[0].ID] == 0
	})
}

func TestGRPCWhenTheSandboxIsGone(t *testing.T) {
	s, _, c := startGRPC(t, Config{HoldTimeout: time.Second, Logger: quiet})
	addr, _ := closedAddr(t)
	st := oneApp(addr)
	st.Sandboxes[0].H2C = true
	st.Routes = []Route{{ID: "rt-1", Host: "grpc.example.com", Path: "/", App: "app-1"}}
	s.install(st)
	ctx, cancel := context.WithTimeout(t.Context(), wait.Limit)
	defer cancel()
	if _, err := c.UnaryCall(ctx, &testpb.SimpleRequest{}); status.Code(err) != codes.Unavailable {
		t.Errorf("%v", err)
	}
}

func TestGRPCLeavesNoGoroutine(t *testing.T) {
	before := runtime.NumGoroutine()
	t.Run("calls", func(t *testing.T) {
		_, _, c := startGRPC(t, Config{})
		ctx, cancel := context.WithTimeout(t.Context(), wait.Limit)
		defer cancel()
		for range 20 {
			stream, err := c.FullDuplexCall(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if err := stream.Send(&testpb.StreamingOutputCallRequest{Payload: &testpb.Payload{}}); err != nil {
				t.Fatal(err)
			}
			if _, err := stream.Recv(); err != nil {
				t.Fatal(err)
			}
		}
	})
	wait.For(t, "the goroutines end", func() bool { return runtime.NumGoroutine() <= before+2 }, wait.State(func() any {
		b := make([]byte, 64<<10)
		return string(b[:runtime.Stack(b, true)])
	}))
}

// TestH2CFromHTTP1 has clients of HTTP/1.1 reach a service that speaks HTTP/2.
func TestH2CFromHTTP1(t *testing.T) {
	up := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/early": // answers without the body
			w.WriteHeader(http.StatusConflict)
		case "/slow":
			_, _ = io.Copy(io.Discard, r.Body)
			<-r.Context().Done()
		default:
			w.Header().Set("Trailer", "X-Sum")
			b, err := io.ReadAll(r.Body)
			fmt.Fprint(w, r.Proto, " ", r.RequestURI, " ", r.Host, " ", len(b), " ", err, " ", r.Header.Get("X-Forwarded-For"), " ", r.Header.Get("User-Agent"))
			w.Header().Set("X-Sum", "1")
		}
	}))
	up.Config.Protocols = &http.Protocols{}
	up.Config.Protocols.SetUnencryptedHTTP2(true)
	up.Start()
	t.Cleanup(up.Close)
	in := start(t, Config{Logger: quiet, MaxBodyBytes: 1 << 20, ResponseHeaderTimeout: time.Second})
	st := oneApp(up.URL)
	st.Sandboxes[0].H2C = true
	in.install(st)
	post := func(path string, body io.Reader) (*http.Response, string, error) {
		r := request(t, "POST", in.url+path, testHost)
		r.Header["User-Agent"] = []string{""}
		r.Body = io.NopCloser(body)
		r.ContentLength = -1
		resp, err := client(t).Do(r)
		if err != nil {
			return nil, "", err
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		return resp, string(b), err
	}
	resp, body, err := post("/a%2Fb?x=1", strings.NewReader(strings.Repeat("x", 500_000)))
	if err != nil || body != "HTTP/2.0 /a%2Fb?x=1 "+testHost+" 500000 <nil> 127.0.0.1 " || resp.Trailer.Get("X-Sum") != "1" {
		t.Errorf("%q %v %v", body, resp, err)
	}
	if resp, _, err := post("/", strings.NewReader(strings.Repeat("x", 2<<20))); err == nil && resp.StatusCode != 413 {
		t.Errorf("a large body: %v", resp.Status)
	}
	pr, pw := io.Pipe()
	defer pw.Close()
	if resp, _, err := post("/early", pr); err != nil || resp.StatusCode != 409 {
		t.Errorf("an answer before the body: %v %v", resp, err)
	}
	if resp, _, err := post("/slow", strings.NewReader("x")); err != nil || resp.StatusCode != 504 {
		t.Errorf("no answer: %v %v", resp, err)
	}
	r := request(t, "HEAD", in.url, testHost)
	if resp, err := client(t).Do(r); err != nil || resp.StatusCode != 200 {
		t.Errorf("HEAD: %v %v", resp, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	gone := request(t, "GET", in.url+"/slow", testHost).WithContext(ctx)
	time.AfterFunc(50*time.Millisecond, cancel)
	if _, err := client(t).Do(gone); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	in.stop()
}

// TestH2CStatusOfNoAnswer: a status that HTTP does not have is an error of the service, and its request ends.
func TestH2CStatusOfNoAnswer(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go answerH2C(c)
		}
	}()
	in := start(t, Config{Logger: quiet})
	st := oneApp(l.Addr().String())
	st.Sandboxes[0].H2C = true
	in.install(st)
	for text, want := range map[string]int{"204": 204, "999": 999, "99": 502, "-200": 502, "0": 502, "1000": 502, "200000": 502} {
		resp, err := client(t).Do(request(t, "GET", in.url+"/"+text, testHost))
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if _ = resp.Body.Close(); resp.StatusCode != want {
			t.Errorf("%s: %s", text, resp.Status)
		}
	}
	wait.For(t, "no request is in flight", func() bool { return in.inflight("")[st.Sandboxes[0].ID] == 0 })
}

// answerH2C answers each request with the status that its path is.
func answerH2C(c net.Conn) {
	defer c.Close()
	if _, err := io.ReadFull(c, make([]byte, len(http2.ClientPreface))); err != nil {
		return
	}
	f := http2.NewFramer(c, c)
	f.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	if f.WriteSettings() != nil {
		return
	}
	var head bytes.Buffer
	e := hpack.NewEncoder(&head)
	for {
		x, err := f.ReadFrame()
		if err != nil {
			return
		}
		h, ok := x.(*http2.MetaHeadersFrame)
		if !ok {
			continue
		}
		head.Reset()
		if e.WriteField(hpack.HeaderField{Name: ":status", Value: strings.TrimPrefix(h.PseudoValue("path"), "/")}) != nil ||
			f.WriteHeaders(http2.HeadersFrameParam{StreamID: h.StreamID, BlockFragment: head.Bytes(), EndHeaders: true, EndStream: true}) != nil {
			return
		}
	}
}
