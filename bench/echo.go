package main

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"path/filepath"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"miren.dev/runtime/pkg/rpc"
)

// The same service twice: echo answers with its request, sink reads a stream and answers with its length, events sends
// the requested number of messages.

// note is the product's message.
type note struct {
	Data []byte `cbor:"1,keyasint,omitempty"`
	N    int64  `cbor:"2,keyasint,omitempty"`
}

func info(name string, s rpc.StreamType) rpc.MethodInfo {
	return rpc.MethodInfo{Service: "bench.Echo", Name: name, Full: "bench.Echo/" + name, Permission: "read", Stream: s}
}

var (
	echoMethod = &rpc.Method{
		MethodInfo: info("Echo", rpc.StreamNone),
		Unary: func(_ context.Context, _ any, d rpc.Decoder) (any, error) {
			m := new(note)
			return m, d.Decode(m)
		},
	}
	sinkMethod = &rpc.Method{
		MethodInfo: info("Sink", rpc.StreamBidi),
		Streaming: func(_ context.Context, _ any, d rpc.Decoder, st rpc.Stream) error {
			if err := d.Decode(new(note)); err != nil {
				return err
			}
			n, err := io.Copy(io.Discard, struct{ io.Reader }{st})
			if err != nil {
				return err
			}
			return st.SendMsg(&note{N: n})
		},
	}
	eventsMethod = &rpc.Method{
		MethodInfo: info("Events", rpc.StreamServer),
		Streaming: func(_ context.Context, _ any, d rpc.Decoder, st rpc.Stream) error {
			var m note
			if err := d.Decode(&m); err != nil {
				return err
			}
			for range m.N {
				if err := st.SendMsg(&note{Data: m.Data}); err != nil {
					return err
				}
			}
			return nil
		},
	}
)

// rpcChild serves it with pkg/rpc. Its argument is the authority's directory.
func rpcChild(ctx context.Context, args []string, ready func(string)) error {
	cfg, err := serverTLS(filepath.Clean(args[0]))
	if err != nil {
		return err
	}
	srv, err := rpc.NewServer(rpc.ServerOptions{TLS: cfg})
	if err != nil {
		return err
	}
	srv.Register(&rpc.Service{Name: "bench.Echo", Methods: []*rpc.Method{echoMethod, sinkMethod, eventsMethod}}, struct{}{})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	return serveUntil(ctx, srv, []net.Listener{l}, func() { ready(l.Addr().String()) })
}

type grpcEcho interface {
	echo(*wrapperspb.BytesValue) *wrapperspb.BytesValue
}

type grpcServer struct{}

func (grpcServer) echo(m *wrapperspb.BytesValue) *wrapperspb.BytesValue { return m }

// grpcService is the table that protoc would have generated.
var grpcService = &grpc.ServiceDesc{
	ServiceName: "bench.Echo", HandlerType: (*grpcEcho)(nil),
	Methods: []grpc.MethodDesc{{
		MethodName: "Echo",
		Handler: func(srv any, _ context.Context, dec func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			m := new(wrapperspb.BytesValue)
			if err := dec(m); err != nil {
				return nil, err
			}
			return srv.(grpcEcho).echo(m), nil
		},
	}},
	Streams: []grpc.StreamDesc{{
		StreamName: "Sink", ClientStreams: true,
		Handler: func(_ any, st grpc.ServerStream) error {
			n := int64(0)
			for {
				var m wrapperspb.BytesValue
				err := st.RecvMsg(&m)
				if errors.Is(err, io.EOF) {
					return st.SendMsg(wrapperspb.Int64(n))
				}
				if err != nil {
					return err
				}
				n += int64(len(m.Value))
			}
		},
	}, {
		StreamName: "Events", ServerStreams: true,
		Handler: func(_ any, st grpc.ServerStream) error {
			var m wrapperspb.Int64Value
			if err := st.RecvMsg(&m); err != nil {
				return err
			}
			data := make([]byte, eventBytes)
			for range m.Value {
				if err := st.SendMsg(wrapperspb.Bytes(data)); err != nil {
					return err
				}
			}
			return nil
		},
	}},
}

// grpcChild serves it with grpc-go. Its argument is the authority's directory.
func grpcChild(ctx context.Context, args []string, ready func(string)) error {
	cfg, err := serverTLS(filepath.Clean(args[0]))
	if err != nil {
		return err
	}
	cfg.ClientAuth = tls.RequireAndVerifyClientCert
	srv := grpc.NewServer(grpc.Creds(credentials.NewTLS(cfg)))
	srv.RegisterService(grpcService, grpcServer{})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- srv.Serve(l) }()
	ready(l.Addr().String())
	select {
	case <-ctx.Done():
		srv.Stop()
		<-ended
		return nil
	case err := <-ended:
		return err
	}
}
