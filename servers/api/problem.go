package api

import (
	"encoding/json"
	"net/http"

	"miren.dev/runtime/pkg/errs"
)

// ProblemType is the media type of a Problem.
const ProblemType = "application/problem+json"

// retryAfter is what clients are told to wait for before they repeat a request
// that the server had no room for, in seconds.
const retryAfter = "1"

// Problem is an error in the form of RFC 9457.
type Problem struct {
	Type   string `json:"type" doc:"urn:runtime:error: and the class of the error."`
	Title  string `json:"title" doc:"Text of the status."`
	Status int    `json:"status" doc:"HTTP status."`
	Detail string `json:"detail" doc:"What happened."`
	Class  string `json:"class" doc:"Class of the error, such as not_found." example:"not_found"`
	Hint   string `json:"hint,omitempty" doc:"What to do next."`
}

// NewProblem returns a problem.
func NewProblem(status int, class errs.Class, detail, hint string) Problem {
	return Problem{
		Type: "urn:runtime:error:" + string(class), Title: http.StatusText(status), Status: status, Detail: detail, Class: string(class), Hint: hint,
	}
}

// ProblemOf returns the problem for an error.
func ProblemOf(err error) Problem {
	return NewProblem(Status(err), errs.ClassOf(err), err.Error(), errs.HintOf(err))
}

// GetHeaders returns the headers of an answer with the problem.
func (p *Problem) GetHeaders() http.Header {
	h := http.Header{}
	switch p.Status {
	case http.StatusUnauthorized:
		h.Set("WWW-Authenticate", `Bearer realm="runtime"`)
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		h.Set("Retry-After", retryAfter)
	}
	return h
}

// WriteProblem answers with the problem for an error. A Retry-After that the
// answer has already stays.
func WriteProblem(w http.ResponseWriter, err error) {
	p, h := ProblemOf(err), w.Header()
	for name, values := range p.GetHeaders() {
		if h.Get(name) == "" {
			h[name] = values
		}
	}
	h.Set("Content-Type", ProblemType)
	w.WriteHeader(p.Status)
	_ = json.NewEncoder(w).Encode(p) // the client may have gone
}
