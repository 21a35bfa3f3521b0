package s3

import (
	"context"
	"errors"
	"net/http"

	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"miren.dev/runtime/pkg/errs"
)

// errPrecondition is the answer 412; what it means depends on the condition.
var errPrecondition = errors.New("the condition does not hold")

// codeOf is S3's error code, or "" if err does not come from S3.
func codeOf(err error) string {
	var api smithy.APIError
	if errors.As(err, &api) {
		return api.ErrorCode()
	}
	return ""
}

// classify gives what went wrong with a request its class; see the package
// comment. ctx is the caller's, without the time-out of the request.
func (s *Store) classify(ctx context.Context, key string, err error) error {
	if cause := ctx.Err(); cause != nil {
		return errs.Wrap(cause, "object %s", key)
	}
	status := 0
	var resp *smithyhttp.ResponseError
	if errors.As(err, &resp) {
		status = resp.HTTPStatusCode()
	}
	code, text := codeOf(err), err.Error()
	var api smithy.APIError
	if errors.As(err, &api) && api.ErrorMessage() != "" {
		text = code + ": " + api.ErrorMessage()
	}
	switch code {
	case "NoSuchKey":
		return errs.New(errs.NotFound, "object %s does not exist", key)
	case "NoSuchBucket":
		return errs.New(errs.FailedPrecondition, "bucket %s does not exist", s.bucket).
			WithHint("create it, or correct its name, the endpoint or the region")
	case "RequestTimeTooSkewed":
		return errs.New(errs.PermissionDenied, "object %s: %s", key, text).WithHint("set this machine's clock right")
	case "ExpiredToken", "InvalidToken", "TokenRefreshRequired":
		return errs.New(errs.PermissionDenied, "object %s: %s", key, text).WithHint("the session token has ended: put new credentials in place")
	case "AuthorizationHeaderMalformed", "PermanentRedirect", "IllegalLocationConstraintException":
		return errs.New(errs.FailedPrecondition, "bucket %s is in another region: %s", s.bucket, text).WithHint("give its region")
	case "QuotaExceeded", "XMinioStorageFull", "XMinioAdminBucketQuotaExceeded":
		return errs.New(errs.ResourceExhausted, "object %s: %s", key, text)
	}
	switch status {
	case http.StatusPreconditionFailed:
		return errPrecondition
	case http.StatusUnauthorized, http.StatusForbidden:
		return errs.New(errs.PermissionDenied, "object %s: %s", key, text).
			WithHint("the credentials must allow to list bucket %s and to get, put and delete its objects", s.bucket)
	case http.StatusMovedPermanently:
		return errs.New(errs.FailedPrecondition, "bucket %s is elsewhere: %s", s.bucket, text).WithHint("give its region")
	case http.StatusNotImplemented:
		return errs.New(errs.FailedPrecondition, "object %s: the server cannot do this: %s", key, text)
	case http.StatusInsufficientStorage:
		return errs.New(errs.ResourceExhausted, "object %s: %s", key, text)
	}
	return errs.New(errs.Unavailable, "object %s: %s", key, text)
}
