package e2b

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strconv"

	"miren.dev/runtime/pkg/errs"
)

// maxJSON bounds the JSON of a request, in bytes.
const maxJSON = 16 << 20

// decode reads the JSON of a request; an empty body is an empty object.
func decode(w http.ResponseWriter, r *http.Request, into any) error {
	err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxJSON)).Decode(into)
	if err == nil || err == io.EOF {
		return nil
	}
	return errs.New(errs.InvalidArgument, "the request is no JSON of the expected form: %w", err)
}

// answer sends a value as JSON; nil: nothing. Clients parse an empty body
// without a length as JSON.
func answer(w http.ResponseWriter, code int, v any) {
	if v == nil {
		if code != http.StatusNoContent {
			w.Header().Set("Content-Length", "0")
		}
		w.WriteHeader(code)
		return
	}
	b, err := json.Marshal(v)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(b)))
	w.WriteHeader(code)
	_, _ = w.Write(b) // a client that is gone needs no answer
}

// failure is E2B's form of an error.
type failure struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
}

// fail answers with an error.
func fail(w http.ResponseWriter, err error) {
	code := status(err)
	if code == http.StatusServiceUnavailable && w.Header().Get("Retry-After") == "" {
		w.Header().Set("Retry-After", "1")
	}
	answer(w, code, failure{code, message(err)})
}

// message returns the text of an error with its advice.
func message(err error) string {
	m := err.Error()
	if hint := errs.HintOf(err); hint != "" {
		m += ": " + hint
	}
	return m
}

// statusGone is what E2B answers for a sandbox that does not run.
const statusGone = http.StatusBadGateway

// detailGone marks the error of a sandbox that does not run.
const detailGone = "sandbox_gone"

// detailPaused marks, beside, that of one that is paused.
const detailPaused = "sandbox_paused"

// errGone returns the error of a sandbox that does not run.
func errGone(name, why string) *errs.Error {
	return errs.New(errs.Unavailable, "sandbox %s %s", name, why).With(detailGone, name)
}

// status returns the HTTP status of an error.
func status(err error) int {
	if errs.Detail(err, detailGone) != "" {
		return statusGone
	}
	return classes[errs.ClassOf(err)].status
}

// class says how E2B's protocols express a class of errors: as an HTTP status,
// and as a code of Connect.
type class struct {
	status int
	code   string
}

var classes = map[errs.Class]class{
	errs.Internal:           {http.StatusInternalServerError, "internal"},
	errs.InvalidArgument:    {http.StatusBadRequest, "invalid_argument"},
	errs.NotFound:           {http.StatusNotFound, "not_found"},
	errs.AlreadyExists:      {http.StatusConflict, "already_exists"},
	errs.Conflict:           {http.StatusConflict, "aborted"},
	errs.FailedPrecondition: {http.StatusConflict, "failed_precondition"},
	errs.PermissionDenied:   {http.StatusForbidden, "permission_denied"},
	errs.Unauthenticated:    {http.StatusUnauthorized, "unauthenticated"},
	errs.ResourceExhausted:  {http.StatusTooManyRequests, "resource_exhausted"},
	errs.Unavailable:        {http.StatusServiceUnavailable, "unavailable"},
	errs.DeadlineExceeded:   {http.StatusGatewayTimeout, "deadline_exceeded"},
	errs.Canceled:           {499, "canceled"},
	errs.Compacted:          {http.StatusInternalServerError, "internal"},
	errs.Corrupt:            {http.StatusInternalServerError, "data_loss"},
	errs.Unimplemented:      {http.StatusNotImplemented, "unimplemented"},
}

// missing returns the error of a part of E2B's protocol that is not served.
func missing(what string) error {
	return errs.New(errs.Unimplemented, "%s: this server does not have it yet", what)
}

// unserved answers every request with the error of missing.
func unserved(what string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { fail(w, missing(what)) }
}

// notFound answers requests for unknown paths.
func notFound(w http.ResponseWriter, r *http.Request) {
	fail(w, errs.New(errs.NotFound, "%s %s: there is no such call", r.Method, r.URL.Path))
}

// handler serves a call that returns a status and the value to send.
type handler func(ctx context.Context, c *caller, w http.ResponseWriter, r *http.Request) (int, any, error)
