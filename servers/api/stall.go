package api

import (
	"io"
	"net/http"
	"time"
)

// unstalled returns w and r such that a peer that neither sends the rest of its
// request nor reads the answer loses its connection. A request that takes long
// is not limited.
func unstalled(w http.ResponseWriter, r *http.Request) (http.ResponseWriter, *http.Request) {
	rc := http.NewResponseController(w)
	if r.Body != nil && r.Body != http.NoBody {
		r = r.WithContext(r.Context()) // a copy
		r.Body = &stallReader{ReadCloser: r.Body, rc: rc}
	}
	return &stallWriter{ResponseWriter: w, rc: rc}, r
}

type stallReader struct {
	io.ReadCloser
	rc *http.ResponseController
}

// Read sets the deadline for itself only: in between the server reads the
// connection to notice that the client has gone.
func (s *stallReader) Read(p []byte) (int, error) {
	_ = s.rc.SetReadDeadline(time.Now().Add(stallTimeout)) // unsupported only in tests without a connection
	defer func() { _ = s.rc.SetReadDeadline(time.Time{}) }()
	return s.ReadCloser.Read(p)
}

type stallWriter struct {
	http.ResponseWriter
	rc     *http.ResponseController
	status int // of the answer; 0: none was stated
}

// WriteHeader notes the status of the answer.
func (s *stallWriter) WriteHeader(status int) {
	if s.status < http.StatusOK { // the last of informational ones and the one after them
		s.status = status
	}
	s.ResponseWriter.WriteHeader(status)
}

// Write sets the deadline for itself only: with HTTP/2 one that passes ends the
// stream even if nothing is written.
func (s *stallWriter) Write(p []byte) (int, error) {
	_ = s.rc.SetWriteDeadline(time.Now().Add(stallTimeout)) // unsupported only in tests without a connection
	defer func() { _ = s.rc.SetWriteDeadline(time.Time{}) }()
	return s.ResponseWriter.Write(p)
}

// Flush implements http.Flusher for libraries that ask for it by type.
func (s *stallWriter) Flush() { _ = s.FlushError() }

// FlushError is Flush for http.ResponseController.
func (s *stallWriter) FlushError() error {
	_ = s.rc.SetWriteDeadline(time.Now().Add(stallTimeout))
	defer func() { _ = s.rc.SetWriteDeadline(time.Time{}) }()
	return s.rc.Flush()
}

// Unwrap makes http.ResponseController reach the connection.
func (s *stallWriter) Unwrap() http.ResponseWriter { return s.ResponseWriter }
