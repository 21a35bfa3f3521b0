package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"
)

// target is what a load is sent to.
type target struct {
	address, host string
	tls           *tls.Config // nil: HTTP without TLS
	h2            bool        // HTTP/2, in place of HTTP/1.1
}

// requester is a hammer of one protocol.
type requester interface {
	run(ctx context.Context, d time.Duration) (latencies, time.Duration, error)
	close()
}

// connect opens the connections.
func (t target) connect(ctx context.Context, conns int) (requester, error) {
	if t.h2 {
		return newH2Hammer(ctx, t.address, t.host, conns, t.tls)
	}
	return newHammer(ctx, t.address, t.host, conns, t.tls)
}

// hammer has open HTTP connections and repeats the same request on them. It does as little as possible, so that it is
// not the bottleneck.
type hammer struct {
	request []byte
	conns   []net.Conn
	readers []*bufio.Reader
}

// newHammer connects; config nil is HTTP without TLS.
func newHammer(ctx context.Context, address, host string, conns int, config *tls.Config) (*hammer, error) {
	h := &hammer{request: []byte("GET / HTTP/1.1\r\nHost: " + host + "\r\nUser-Agent: bench\r\nAccept: */*\r\n\r\n")}
	for range conns {
		var c net.Conn
		var err error
		if config == nil {
			c, err = new(net.Dialer).DialContext(ctx, "tcp", address)
		} else {
			c, err = (&tls.Dialer{Config: config}).DialContext(ctx, "tcp", address)
		}
		if err != nil {
			h.close()
			return nil, err
		}
		h.conns, h.readers = append(h.conns, c), append(h.readers, bufio.NewReader(c))
	}
	return h, nil
}

func (h *hammer) close() {
	for _, c := range h.conns {
		_ = c.Close()
	}
}

// run sends requests for d and returns how long each took.
func (h *hammer) run(ctx context.Context, d time.Duration) (latencies, time.Duration, error) {
	return onEach(ctx, h.conns, func(i int, start time.Time) (took latencies, err error) {
		for t := time.Now(); err == nil && t.Sub(start) < d && ctx.Err() == nil; {
			if _, err = h.conns[i].Write(h.request); err == nil {
				err = answer(h.readers[i])
			}
			now := time.Now()
			took = append(took, now.Sub(t))
			t = now
		}
		return took, err
	})
}

// onEach calls do for each connection at the same time, with the time of the start, and joins what it returns.
func onEach[C any](ctx context.Context, conns []C, do func(i int, start time.Time) (latencies, error)) (latencies, time.Duration, error) {
	var mu sync.Mutex
	var all latencies
	var failed error
	var wg sync.WaitGroup
	start := time.Now()
	for i := range conns {
		wg.Go(func() {
			took, err := do(i, start)
			mu.Lock()
			all, failed = append(all, took...), errors.Join(failed, err)
			mu.Unlock()
		})
	}
	wg.Wait()
	return all, time.Since(start), errors.Join(failed, ctx.Err())
}

// answer reads one answer, which must be 200 and have a length.
func answer(r *bufio.Reader) error {
	length := -1
	for first := true; ; first = false {
		line, err := r.ReadSlice('\n')
		if err != nil {
			return err
		}
		if first && !strings.HasPrefix(string(line), "HTTP/1.1 200 ") {
			return fmt.Errorf("answer %q", line)
		}
		if len(line) == 2 {
			break
		}
		if len(line) > 16 && strings.EqualFold(string(line[:16]), "content-length: ") {
			if length, err = strconv.Atoi(strings.TrimSpace(string(line[16:]))); err != nil {
				return err
			}
		}
	}
	if length < 0 {
		return errors.New("an answer without Content-Length")
	}
	_, err := r.Discard(length)
	return err
}
