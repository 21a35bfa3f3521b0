package rest

import (
	"encoding/json"
	"errors"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/servers/api"
)

// retryAfter is what clients are told to wait for before they repeat a request
// that the server had no room for, in seconds.
const retryAfter = "1"

const problemType = "application/problem+json"

// Problem is an error in the form of RFC 9457.
type Problem struct {
	Type   string              `json:"type" doc:"urn:runtime:error: and the class of the error."`
	Title  string              `json:"title" doc:"Text of the status."`
	Status int                 `json:"status" doc:"HTTP status."`
	Detail string              `json:"detail" doc:"What happened."`
	Class  string              `json:"class" doc:"Class of the error, such as not_found." example:"not_found"`
	Hint   string              `json:"hint,omitempty" doc:"What to do next."`
	Errors []*huma.ErrorDetail `json:"errors,omitempty" doc:"Parts of the request that are wrong."`
}

// Error implements error.
func (p *Problem) Error() string { return p.Detail }

// GetStatus implements huma.StatusError.
func (p *Problem) GetStatus() int { return p.Status }

// ContentType implements huma.ContentTypeFilter.
func (p *Problem) ContentType(string) string { return problemType }

// GetHeaders implements huma.HeadersError.
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

func newProblem(status int, class errs.Class, detail, hint string) *Problem {
	return &Problem{
		Type: "urn:runtime:error:" + string(class), Title: http.StatusText(status), Status: status, Detail: detail, Class: string(class), Hint: hint,
	}
}

// problemOf returns the problem for an error.
func problemOf(err error) *Problem {
	var p *Problem
	if errors.As(err, &p) {
		return p
	}
	return newProblem(api.Status(err), errs.ClassOf(err), err.Error(), errs.HintOf(err))
}

// classes are the classes of the errors that huma finds itself.
var classes = map[int]errs.Class{
	http.StatusRequestEntityTooLarge: errs.ResourceExhausted,
	http.StatusInternalServerError:   errs.Internal,
}

// The library makes its errors by these variables.
func init() {
	huma.NewError = func(status int, msg string, details ...error) huma.StatusError {
		class, ok := classes[status]
		if !ok {
			class = errs.InvalidArgument
		}
		p := newProblem(status, class, msg, "")
		for _, d := range details {
			var e huma.ErrorDetailer
			switch {
			case d == nil:
			case errors.As(d, &e):
				p.Errors = append(p.Errors, e.ErrorDetail())
			default:
				p.Errors = append(p.Errors, &huma.ErrorDetail{Message: d.Error()})
			}
		}
		return p
	}
	huma.DefaultArrayNullable = false
}

// writeProblem answers a request outside a handler.
func writeProblem(c huma.Context, p *Problem) {
	for name, values := range p.GetHeaders() {
		c.SetHeader(name, values[0])
	}
	c.SetHeader("Content-Type", p.ContentType(""))
	c.SetStatus(p.Status)
	_ = json.NewEncoder(c.BodyWriter()).Encode(p) // the client may have gone
}
