package e2e

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	testpb "google.golang.org/grpc/interop/grpc_testing"
)

// What the clients of TestConstantLoad speak.
const (
	http11    = "HTTP/1.1"
	http2     = "HTTP/2"
	webSocket = "WebSocket"
	events    = "event stream"
	grpcCall  = "gRPC call"
	grpcFlow  = "gRPC stream"
)

var (
	streamed  = []string{webSocket, events, grpcFlow}
	protocols = append([]string{http11, http2, grpcCall}, streamed...)
)

const (
	// streamLife is how long a stream lives that its client ends. Only the drain of a node
	// ends it before, since it is shorter than every drain time.
	streamLife = 3 * time.Second
	// patience bounds one request, which may wait for a sandbox.
	patience = 3 * time.Minute
)

// loadClients are clients of an app, one of each protocol. Its methods are for one
// goroutine.
type loadClients struct {
	l       *constantLoad
	app     string
	one     *http.Client // HTTP/1.1
	two     *http.Client // HTTP/2
	conn    *grpc.ClientConn
	service testpb.TestServiceClient
}

func (l *constantLoad) newClients(app string) *loadClients {
	c := &loadClients{l: l, app: app}
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", l.https)
	}
	config := &tls.Config{RootCAs: l.ca.Pool()}
	c.one = &http.Client{Transport: &http.Transport{}}
	c.two = &http.Client{Transport: &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: true, DialContext: dial}}
	var err error
	c.conn, err = grpc.NewClient("passthrough:///"+app+grpcHost, grpc.WithTransportCredentials(credentials.NewTLS(config)),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return dial(ctx, "", "") }))
	if err != nil {
		l.t.Fatal(err)
	}
	c.service = testpb.NewTestServiceClient(c.conn)
	return c
}

// idle ends the connections that no request uses.
func (c *loadClients) idle() {
	c.one.CloseIdleConnections()
	c.two.CloseIdleConnections()
}

func (c *loadClients) close() {
	c.idle()
	_ = c.conn.Close() // its requests have ended
}

// startClients has clients use the app until ctx ends.
func (l *constantLoad) startClients(ctx context.Context, done *sync.WaitGroup) {
	start := func(n int, work func(c *loadClients, i int)) {
		for i := range n {
			c := l.newClients(loadApp)
			done.Go(func() {
				defer c.close()
				for ctx.Err() == nil {
					work(c, i)
				}
			})
		}
	}
	calls := func(protocol string, n int, every time.Duration) {
		start(n, func(c *loadClients, _ int) {
			began := time.Now()
			if err := c.once(ctx, protocol); ctx.Err() == nil {
				l.add(protocol, time.Since(began), err)
			}
			_ = pause(ctx, every)
		})
	}
	calls(http11, 4, 60*time.Millisecond)
	calls(http2, 4, 60*time.Millisecond)
	calls(grpcCall, 2, 60*time.Millisecond)
	// A client's messages have one sequence of numbers through all of its streams.
	streams := func(protocol string, n int, one func(c *loadClients, ctx context.Context, next *int, life time.Duration) error) {
		next := make([]int, n)
		start(n, func(c *loadClients, i int) {
			life := streamLife
			if i%2 == 1 {
				life = 24 * time.Hour // until something else ends it
			}
			opened := time.Now()
			err := one(c, ctx, &next[i], life)
			switch {
			case ctx.Err() != nil:
			case errors.Is(err, errOrderly) && (life > streamLife || time.Since(opened) > loadDrain/2 || l.endsStreams()),
				err != nil && life > streamLife && l.mayBeCut(opened):
				l.streamEnded()
			case err != nil:
				l.add(protocol, time.Since(opened), err)
				_ = pause(ctx, 100*time.Millisecond)
			}
		})
	}
	streams(webSocket, 4, (*loadClients).webSocket)
	streams(events, 4, (*loadClients).events)
	streams(grpcFlow, 4, (*loadClients).grpcStream)
}

// errOrderly is the end of a stream by an app that stops: the client is told, and comes
// again.
var errOrderly = errors.New("the app has ended the stream before its time")

// once makes a request, or opens a stream for a message. Messages are counted, requests
// are not.
func (c *loadClients) once(ctx context.Context, protocol string) error {
	next := 0
	switch protocol {
	case http11:
		return c.post(ctx, c.one, fmt.Sprintf("http://127.0.0.1:%d/", c.l.port), c.app+".localhost", http11)
	case http2:
		return c.post(ctx, c.two, "https://"+c.app+".example.com/", "", "HTTP/2.0")
	case webSocket:
		return c.webSocket(ctx, &next, 0)
	case events:
		return c.events(ctx, &next, 0)
	case grpcFlow:
		return c.grpcStream(ctx, &next, 0)
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	resp, err := c.service.UnaryCall(ctx, &testpb.SimpleRequest{Payload: &testpb.Payload{Body: []byte("hello")}}, grpc.WaitForReady(false))
	if err == nil && string(resp.Payload.Body) != "hello" {
		err = fmt.Errorf("answer %q", resp.Payload.Body)
	}
	return err
}

// post sends a body, so that no library repeats the request: by HTTP/1.1 not at all, by
// HTTP/2 only one that the server has not heard.
func (c *loadClients) post(ctx context.Context, client *http.Client, url, host, proto string) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader("hello"))
	if err != nil {
		return err
	}
	if req.Host = host; proto == http11 {
		req.GetBody = nil
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK || !strings.HasSuffix(string(b), " hello") || resp.Proto != proto {
		return fmt.Errorf("%s %s %.300q %w", resp.Proto, resp.Status, b, err)
	}
	return nil
}

// message waits between two messages of a stream.
func message(ctx context.Context) error { return pause(ctx, 55*time.Millisecond) }

// webSocket has messages echoed for a time, and at least one.
func (c *loadClients) webSocket(ctx context.Context, next *int, life time.Duration) error {
	opened := time.Now()
	dial, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	conn, _, err := websocket.Dial(dial, fmt.Sprintf("ws://127.0.0.1:%d/echo", c.l.port), &websocket.DialOptions{Host: c.app + ".localhost", HTTPClient: c.one})
	if err != nil {
		return err
	}
	defer conn.CloseNow()
	for {
		sent, text := time.Now(), fmt.Sprint(*next)
		within, cancel := context.WithTimeout(ctx, patience)
		err := conn.Write(within, websocket.MessageText, []byte(text))
		var b []byte
		if _, got, e := conn.Read(within); err == nil || e != nil { // which says why a write failed
			b, err = got, e
		}
		cancel()
		if websocket.CloseStatus(err) == websocket.StatusGoingAway {
			return errOrderly
		}
		if err != nil || string(b) != text {
			return fmt.Errorf("message %s was answered %q: %w", text, b, err)
		}
		c.l.add(webSocket, time.Since(sent), nil)
		*next++
		if time.Since(opened) >= life {
			return conn.Close(websocket.StatusNormalClosure, "")
		}
		if err := message(ctx); err != nil {
			return err
		}
	}
}

// events reads a stream of numbered events, which goes on where the last one ended.
func (c *loadClients) events(ctx context.Context, next *int, life time.Duration) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	opened := time.Now()
	to := *next + 1 + int(life/(50*time.Millisecond))
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/events?from=%d&to=%d", c.l.port, *next, to), nil)
	if err != nil {
		return err
	}
	req.Host = c.app + ".localhost"
	timer := time.AfterFunc(patience, cancel)
	defer timer.Stop()
	resp, err := c.one.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	if resp.StatusCode != http.StatusOK {
		lines.Scan()
		return fmt.Errorf("%s: %s", resp.Status, lines.Text())
	}
	first := *next
	for lines.Scan() {
		timer.Reset(patience)
		line := lines.Text()
		switch {
		case line == "event: end" && *next == to:
			return nil
		case line == "event: end":
			return errOrderly
		case line == fmt.Sprintf("data: %d", *next):
			took := time.Duration(0)
			if *next == first {
				took = time.Since(opened)
			}
			c.l.add(events, took, nil)
			*next++
		case line != "":
			return fmt.Errorf("%q came in place of event %d", line, *next)
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("after event %d: %w", *next-1, err)
	}
	return fmt.Errorf("the answer ended after event %d", *next-1)
}

// grpcStream has messages echoed for a time, and at least one.
func (c *loadClients) grpcStream(ctx context.Context, next *int, life time.Duration) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	opened := time.Now()
	timer := time.AfterFunc(patience, cancel)
	defer timer.Stop()
	stream, err := c.service.FullDuplexCall(ctx)
	if err != nil {
		return err
	}
	for {
		sent, text := time.Now(), fmt.Sprint(*next)
		// Recv says why a Send failed.
		sendErr := stream.Send(&testpb.StreamingOutputCallRequest{Payload: &testpb.Payload{Body: []byte(text)}})
		resp, err := stream.Recv()
		if err == io.EOF {
			return errOrderly
		}
		if err != nil {
			return fmt.Errorf("message %s: %w", text, errors.Join(err, sendErr))
		}
		if string(resp.Payload.Body) != text {
			return fmt.Errorf("message %s was answered %q", text, resp.Payload.Body)
		}
		c.l.add(grpcFlow, time.Since(sent), nil)
		*next++
		timer.Reset(patience)
		if time.Since(opened) >= life {
			if err := stream.CloseSend(); err != nil {
				return err
			}
			if _, err := stream.Recv(); err != io.EOF {
				return fmt.Errorf("the end after message %s: %w", text, err)
			}
			return nil
		}
		if err := message(ctx); err != nil {
			return err
		}
	}
}
