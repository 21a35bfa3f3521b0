package api

import (
	"net/http"

	"miren.dev/runtime/pkg/errs"
)

// Status returns the HTTP status of an error.
func Status(err error) int {
	switch errs.ClassOf(err) {
	case errs.InvalidArgument:
		return http.StatusBadRequest
	case errs.Unauthenticated:
		return http.StatusUnauthorized
	case errs.PermissionDenied:
		return http.StatusForbidden
	case errs.NotFound:
		return http.StatusNotFound
	case errs.AlreadyExists, errs.Conflict, errs.FailedPrecondition:
		return http.StatusConflict
	case errs.Compacted:
		return http.StatusGone
	case errs.ResourceExhausted:
		return http.StatusTooManyRequests
	case errs.Unimplemented:
		return http.StatusNotImplemented
	case errs.Unavailable, errs.Canceled:
		return http.StatusServiceUnavailable
	case errs.DeadlineExceeded:
		return http.StatusGatewayTimeout
	}
	return http.StatusInternalServerError
}
