package kubernetes

import (
	"context"
	"errors"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"miren.dev/runtime/pkg/errs"
)

// apiError gives an error of the API server its class.
func apiError(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	what := errs.New(errs.Internal, format, args...).Message
	class := errs.Unavailable
	switch {
	case errors.Is(err, context.Canceled):
		class = errs.Canceled
	case errors.Is(err, context.DeadlineExceeded):
		class = errs.DeadlineExceeded
	case apierrors.IsNotFound(err):
		class = errs.NotFound
	case apierrors.IsAlreadyExists(err):
		class = errs.AlreadyExists
	case apierrors.IsConflict(err):
		class = errs.Conflict
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err):
		class = errs.InvalidArgument
	case apierrors.IsForbidden(err) && strings.Contains(err.Error(), "quota"):
		class = errs.ResourceExhausted
	case apierrors.IsForbidden(err):
		return errs.New(errs.FailedPrecondition, "%s: %w", what, err).
			WithHint("docs/kubernetes.md lists what the server's account must be allowed, and the level of the namespace")
	case apierrors.IsUnauthorized(err):
		class = errs.FailedPrecondition
	}
	return errs.New(class, "%s: %w", what, err)
}
