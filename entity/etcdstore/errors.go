package etcdstore

import (
	"context"
	"errors"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"miren.dev/runtime/entity/eval"
	"miren.dev/runtime/pkg/errs"
)

// The pause between two attempts doubles.
const (
	retryPause    = 20 * time.Millisecond
	maxRetryPause = 500 * time.Millisecond
)

// refused reports whether etcd rejected a request, which it will always do.
func refused(err error) bool {
	for _, e := range []error{
		rpctypes.ErrTooManyOps, rpctypes.ErrRequestTooLarge, rpctypes.ErrDuplicateKey, rpctypes.ErrEmptyKey,
		rpctypes.ErrPermissionDenied, rpctypes.ErrUserEmpty, rpctypes.ErrAuthFailed, rpctypes.ErrNoSpace,
	} {
		if errors.Is(rpctypes.Error(err), e) {
			return true
		}
	}
	return false
}

// mapError gives an error of etcd its class.
func mapError(err error, doing string) error {
	if err == nil {
		return nil
	}
	var classed *errs.Error
	if errors.As(err, &classed) {
		return err
	}
	e := rpctypes.Error(err)
	switch {
	case errors.Is(e, rpctypes.ErrTooManyOps), errors.Is(e, rpctypes.ErrRequestTooLarge):
		return errs.New(errs.InvalidArgument, "%s: %w", doing, err).WithHint(limitHint)
	case errors.Is(e, rpctypes.ErrDuplicateKey), errors.Is(e, rpctypes.ErrEmptyKey):
		return errs.New(errs.Internal, "%s: %w", doing, err)
	case errors.Is(e, rpctypes.ErrNoSpace):
		return errs.New(errs.Unavailable, "%s: %w", doing, err).
			WithHint("the database of etcd is full: compact and defragment it, or raise --quota-backend-bytes; then disarm its alarm")
	case errors.Is(e, rpctypes.ErrPermissionDenied), errors.Is(e, rpctypes.ErrAuthFailed), errors.Is(e, rpctypes.ErrUserEmpty):
		return errs.New(errs.Unavailable, "%s: %w", doing, err).WithHint("the user of the store URL needs to read and write its prefix")
	}
	if s, ok := status.FromError(err); ok && s.Code() == codes.Internal {
		return errs.New(errs.Internal, "%s: %w", doing, err)
	}
	return errs.New(errs.Unavailable, "%s: %w", doing, err)
}

// retryRead runs a read, and repeats it while the cluster cannot be reached or does
// not answer, and there is time.
func retryRead[T any](ctx context.Context, s *Store, doing string, read func(context.Context) (T, error)) (T, error) {
	began, pause := time.Now(), retryPause
	for {
		attempt, cancel := context.WithTimeout(ctx, s.cfg.Attempt)
		v, err := read(attempt)
		cancel()
		if err == nil {
			return v, nil
		}
		var classed *errs.Error
		if !errors.As(err, &classed) && ctx.Err() != nil {
			return v, eval.ContextError(ctx, doing)
		}
		final := refused(err)
		if err = mapError(err, doing); final || !errs.Is(err, errs.Unavailable) || time.Since(began) > s.cfg.RetryFor {
			return v, err
		}
		select {
		case <-ctx.Done():
			return v, err // Unavailable says more than Canceled
		case <-s.closing:
			return v, eval.ErrClosed()
		case <-time.After(pause):
		}
		pause = min(2*pause, maxRetryPause)
	}
}
