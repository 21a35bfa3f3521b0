package rest

import (
	"encoding/json"
	"errors"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/servers/api"
)

// Problem is an error in the form of RFC 9457.
type Problem struct {
	api.Problem
	Errors []*huma.ErrorDetail `json:"errors,omitempty" doc:"Parts of the request that are wrong."`
}

// Error implements error.
func (p *Problem) Error() string { return p.Detail }

// GetStatus implements huma.StatusError.
func (p *Problem) GetStatus() int { return p.Status }

// ContentType implements huma.ContentTypeFilter.
func (p *Problem) ContentType(string) string { return api.ProblemType }

// problemOf returns the problem for an error.
func problemOf(err error) *Problem {
	var p *Problem
	if errors.As(err, &p) {
		return p
	}
	return &Problem{Problem: api.ProblemOf(err)}
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
		p := &Problem{Problem: api.NewProblem(status, class, msg, "")}
		for _, d := range details {
			var e huma.ErrorDetailer
			switch {
			case d == nil:
			case errors.As(d, &e):
				d := *e.ErrorDetail()
				d.Value = nil // it may be the whole body, with secrets
				p.Errors = append(p.Errors, &d)
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
