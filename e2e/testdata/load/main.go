// Command load is the app of TestConstantLoad: it answers requests, echoes messages of
// WebSockets and of gRPC, and counts in streams of events. When it is told to stop, it
// ends each stream so that the client knows that nothing is lost. It is the app of
// TestChaos too.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/coder/websocket"
	"google.golang.org/grpc"
	testpb "google.golang.org/grpc/interop/grpc_testing"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if len(os.Args) > 1 && os.Args[1] == "once" {
		fmt.Println("done")
		return
	}
	serve := serveHTTP
	if len(os.Args) > 1 && os.Args[1] == "grpc" {
		serve = serveGRPC
	}
	if err := serve(ctx, ":"+os.Getenv("PORT")); err != nil {
		slog.Error("serve", "error", err)
		os.Exit(1)
	}
}

// process says in answers which process gave them.
var process = strconv.FormatInt(time.Now().UnixNano(), 36)

func serveHTTP(ctx context.Context, addr string) error {
	var sockets sync.WaitGroup
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Process", process)
		fmt.Fprintf(w, "%s ", os.Getenv("VERSION"))
		_, _ = io.Copy(w, r.Body)
	})
	mux.HandleFunc("/env", func(w http.ResponseWriter, r *http.Request) { // of TestChaos
		fmt.Fprintf(w, "%s %s", os.Getenv("VERSION"), os.Getenv(r.FormValue("name")))
	})
	mux.HandleFunc("/events", func(w http.ResponseWriter, r *http.Request) { count(ctx, w, r) })
	mux.HandleFunc("/echo", func(w http.ResponseWriter, r *http.Request) {
		sockets.Add(1)
		defer sockets.Done()
		echo(ctx, w, r)
	})
	srv := &http.Server{Addr: addr, Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	ended := make(chan error, 1)
	go func() {
		<-ctx.Done()
		limit, cancel := context.WithTimeout(context.Background(), 8*time.Second)
		defer cancel()
		ended <- srv.Shutdown(limit)
	}()
	if err := srv.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	err := <-ended
	sockets.Wait() // Shutdown does not know them
	return err
}

// count sends numbers from `from` on, of which the last is before `to`, and the event
// "end" when there are no more, or when the process stops.
func count(ctx context.Context, w http.ResponseWriter, r *http.Request) {
	from, _ := strconv.Atoi(r.FormValue("from"))
	to, _ := strconv.Atoi(r.FormValue("to"))
	w.Header().Set("Content-Type", "text/event-stream")
	out := http.NewResponseController(w)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for i := from; i < to; i++ {
		fmt.Fprintf(w, "data: %d\n\n", i)
		if out.Flush() != nil {
			return
		}
		select {
		case <-ctx.Done():
			i = to
		case <-r.Context().Done():
			return
		case <-tick.C:
		}
	}
	fmt.Fprint(w, "event: end\ndata: \n\n")
}

func echo(ctx context.Context, w http.ResponseWriter, r *http.Request) {
	c, err := websocket.Accept(w, r, nil)
	if err != nil {
		return
	}
	defer c.CloseNow()
	done := make(chan struct{})
	var closing sync.WaitGroup
	closing.Go(func() {
		select {
		case <-ctx.Done():
			_ = c.Close(websocket.StatusGoingAway, "the process stops")
		case <-done:
		}
	})
	defer closing.Wait()
	defer close(done)
	for {
		kind, b, err := c.Read(context.Background())
		if err != nil || c.Write(context.Background(), kind, b) != nil {
			return
		}
	}
}

func serveGRPC(ctx context.Context, addr string) error {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	srv := grpc.NewServer()
	testpb.RegisterTestServiceServer(srv, service{stops: ctx.Done()})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		<-ctx.Done()
		srv.GracefulStop()
	}()
	if err := srv.Serve(l); err != nil {
		return err
	}
	<-ended
	return nil
}

type service struct {
	testpb.UnimplementedTestServiceServer
	stops <-chan struct{}
}

func (s service) UnaryCall(_ context.Context, req *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	return &testpb.SimpleResponse{Payload: req.Payload, ServerId: process}, nil
}

// FullDuplexCall echoes messages, and ends without an error when the process stops.
func (s service) FullDuplexCall(stream grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]) error {
	received, failed := make(chan *testpb.Payload), make(chan error, 1)
	go func() {
		for {
			req, err := stream.Recv()
			if err != nil {
				failed <- err
				return
			}
			select {
			case received <- req.Payload:
			case <-stream.Context().Done():
				return
			}
		}
	}()
	for {
		select {
		case <-s.stops:
			return nil
		case err := <-failed:
			if err == io.EOF {
				return nil
			}
			return err
		case p := <-received:
			if err := stream.Send(&testpb.StreamingOutputCallResponse{Payload: p}); err != nil {
				return err
			}
		}
	}
}
