package miren

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"time"
)

const (
	firstDelay   = 500 * time.Millisecond
	longestDelay = 30 * time.Second
	// longestTransfer is how long a request may take that says nothing else, in seconds.
	longestTransfer = 300
)

// sender sends requests. It repeats those that the server had no room for, and
// those that got no answer and can be repeated. Answers of status 400 and above
// are errors.
type sender struct {
	http    *http.Client
	key     string
	timeout time.Duration
	retries int
}

type takesKey struct{}

// takes returns a context for requests that themselves may take so many seconds.
func takes(ctx context.Context, seconds int64) context.Context {
	return context.WithValue(ctx, takesKey{}, time.Duration(seconds)*time.Second)
}

// Do implements rest.HttpRequestDoer.
func (s *sender) Do(req *http.Request) (*http.Response, error) {
	req.Header.Set("Authorization", "Bearer "+s.key)
	req.Header.Set("User-Agent", "miren-runtime-go/"+version)
	for attempt := 0; ; attempt++ {
		resp, err := s.once(req)
		switch {
		case err == nil && resp.StatusCode < http.StatusBadRequest:
			return resp, nil
		case attempt >= s.retries || req.Body != nil && req.GetBody == nil, err != nil && !afterFailure(req, err), err == nil && !afterAnswer(req, resp):
			if err == nil {
				err = problemOf(resp)
			}
			return nil, err
		}
		wait := delay(attempt, resp)
		if resp != nil {
			resp.Body.Close()
		}
		if req.GetBody != nil {
			if req.Body, err = req.GetBody(); err != nil {
				return nil, err
			}
		}
		select {
		case <-req.Context().Done():
			return nil, context.Cause(req.Context())
		case <-time.After(wait):
		}
	}
}

// once sends a request once. Its answer has to begin in time.
func (s *sender) once(req *http.Request) (*http.Response, error) {
	limit := s.timeout
	if d, ok := req.Context().Value(takesKey{}).(time.Duration); ok {
		limit += d
	} else {
		limit += longestTransfer * time.Second
	}
	ctx, cancel := context.WithCancelCause(req.Context())
	timer := time.AfterFunc(limit, func() { cancel(fmt.Errorf("miren: no answer for %v: %w", limit, context.DeadlineExceeded)) })
	resp, err := s.http.Do(req.WithContext(ctx))
	timer.Stop()
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		cancel(nil)
		return nil, err
	}
	resp.Body = &canceler{resp.Body, func() { cancel(nil) }}
	return resp, nil
}

// canceler releases the context of an answer with its body.
type canceler struct {
	io.ReadCloser
	cancel func()
}

func (c *canceler) Close() error {
	defer c.cancel()
	return c.ReadCloser.Close()
}

// repeatable reports whether a request can be sent twice, with the effect of one.
func repeatable(req *http.Request) bool {
	switch req.Method {
	case http.MethodGet, http.MethodPut, http.MethodDelete:
		return true
	}
	return req.Header.Get("Idempotency-Key") != ""
}

// afterAnswer reports whether an answer asks for the request to be repeated. With
// 429 nothing was done. With 503 something may have been.
func afterAnswer(req *http.Request, resp *http.Response) bool {
	return resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode == http.StatusServiceUnavailable && repeatable(req)
}

// afterFailure reports whether to repeat a request that got no answer.
func afterFailure(req *http.Request, err error) bool {
	if req.Context().Err() != nil || errors.Is(err, context.DeadlineExceeded) {
		return false
	}
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial" || repeatable(req)
}

// delay returns the time before the next attempt: what the server asks for, else
// twice as long each time.
func delay(attempt int, resp *http.Response) time.Duration {
	if resp != nil {
		if n, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && n >= 0 {
			return min(time.Duration(n)*time.Second, longestDelay)
		}
	}
	longest := min(firstDelay<<min(attempt, 10), longestDelay)
	return longest/2 + rand.N(longest/2)
}
