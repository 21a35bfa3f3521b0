package e2b

import (
	"compress/gzip"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"miren.dev/runtime/pkg/errs"
)

// This file is Connect's protocol (connectrpc.com) with JSON, as far as E2B's
// clients speak it: calls with one answer, and calls with a stream of answers.
// Messages of streams are in envelopes: flags (1 byte), length (4), JSON.

const (
	flagCompressed = 1
	flagEnd        = 2
	envelopeSize   = 5
)

// connectFailure is Connect's form of an error.
type connectFailure struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

func connectError(err error) connectFailure {
	return connectFailure{classes[errs.ClassOf(err)].code, message(err)}
}

// connectStatus has the HTTP status of Connect's codes where it is not that of
// E2B's API.
var connectStatus = map[string]int{"failed_precondition": http.StatusBadRequest}

// failConnect answers a call with one answer, or one whose stream did not begin.
func failConnect(w http.ResponseWriter, err error) {
	if errs.Detail(err, detailGone) != "" {
		fail(w, err)
		return
	}
	f := connectError(err)
	code, ok := connectStatus[f.Code]
	if !ok {
		code = status(err)
	}
	answer(w, code, f)
}

// unary serves a method with one answer.
func unary[Q, A any](s *Server, f func(context.Context, *guest, *Q) (A, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		g, err := s.guest(r)
		if err != nil {
			failConnect(w, err)
			return
		}
		body, err := plainBody(r)
		if err != nil {
			failConnect(w, err)
			return
		}
		r.Body = body
		q := new(Q)
		if err := decode(w, r, q); err != nil {
			failConnect(w, err)
			return
		}
		a, err := f(r.Context(), g, q)
		if err != nil {
			failConnect(w, s.explain(r.Context(), g.sb.GetID(), err))
			return
		}
		answer(w, http.StatusOK, a)
	}
}

// plainBody returns the body of a request without its compression.
func plainBody(r *http.Request) (io.ReadCloser, error) {
	switch e := r.Header.Get("Content-Encoding"); e {
	case "", "identity":
		return r.Body, nil
	case "gzip":
		z, err := gzip.NewReader(r.Body)
		if err != nil {
			return nil, errs.New(errs.InvalidArgument, "the body is not compressed with gzip as its header says: %w", err)
		}
		return z, nil
	default:
		return nil, errs.New(errs.Unimplemented, "the body is encoded with %q: use gzip or none", e)
	}
}

// answers sends the messages of a stream. It is for one goroutine.
type answers struct {
	w       http.ResponseWriter
	flusher *http.ResponseController
	timeout time.Duration // of the call; 0: none
	ping    time.Duration // time without a message after which the client wants one; 0: none
}

func (a *answers) send(v any) error { return a.envelope(0, v) }

func (a *answers) envelope(flags byte, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	frame := binary.BigEndian.AppendUint32([]byte{flags}, uint32(len(b)))
	if _, err := a.w.Write(append(frame, b...)); err != nil {
		return err
	}
	return a.flusher.Flush()
}

// streaming serves a method with a stream of answers.
func streaming[Q any](s *Server, f func(context.Context, *guest, *Q, *answers) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasPrefix(r.Header.Get("Content-Type"), "application/connect+json") {
			w.Header().Set("Accept-Post", "application/connect+json")
			w.WriteHeader(http.StatusUnsupportedMediaType)
			return
		}
		g, err := s.guest(r)
		if err != nil {
			failConnect(w, err)
			return
		}
		a := &answers{w: w, flusher: http.NewResponseController(w)}
		a.timeout = duration(r.Header.Get("Connect-Timeout-Ms"), time.Millisecond)
		a.ping = duration(r.Header.Get("Keepalive-Ping-Interval"), time.Second)
		w.Header().Set("Content-Type", "application/connect+json")
		q := new(Q)
		if err = readEnvelope(w, r, q); err == nil {
			err = s.explain(r.Context(), g.sb.GetID(), f(r.Context(), g, q, a))
		}
		end := struct {
			Error *connectFailure `json:"error,omitempty"`
		}{}
		if err != nil {
			f := connectError(err)
			end.Error = &f
		}
		_ = a.envelope(flagEnd, end) // a client that is gone needs no end
	}
}

// duration reads the value of a header in a unit. It returns 0 for text that states no duration,
// and the longest duration for more than that.
func duration(text string, unit time.Duration) time.Duration {
	n, err := strconv.ParseInt(text, 10, 64)
	if n < 0 || err != nil && !errors.Is(err, strconv.ErrRange) {
		return 0
	}
	return time.Duration(min(n, math.MaxInt64/int64(unit))) * unit
}

// readEnvelope reads the one message of a request.
func readEnvelope(w http.ResponseWriter, r *http.Request, into any) error {
	var head [envelopeSize]byte
	if _, err := io.ReadFull(r.Body, head[:]); err != nil {
		return errs.New(errs.InvalidArgument, "the request has no message: %w", err)
	}
	if n := binary.BigEndian.Uint32(head[1:]); n > maxJSON {
		return errs.New(errs.InvalidArgument, "the request has %d bytes, which is more than %d", n, maxJSON)
	}
	if head[0]&flagCompressed != 0 {
		z, err := gzip.NewReader(r.Body)
		if err != nil {
			return errs.New(errs.InvalidArgument, "the request is not compressed with gzip: %w", err)
		}
		r.Body = z
	}
	return decode(w, r, into)
}
