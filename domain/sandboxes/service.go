package sandboxes

import (
	"context"
	"log/slog"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/domain/apps"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/informer"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// Service is the operations on the sandboxes of one store. It is safe for
// concurrent use.
type Service struct {
	Store     entity.Store
	Informers *informer.Set // over Store, for Wait, Exec and Logs
	Apps      *apps.Service
	Node      Node           // runs the sandboxes
	Sealer    *schema.Sealer // seals secret variables
	// Image turns what people call an image (the name of a base image, a reference)
	// into a reference of the node's image store, and makes the image if need be.
	Image  func(ctx context.Context, name string) (string, error)
	Logger *slog.Logger
}

// errEnded is the error of an operation that needs a sandbox which has not
// ended.
func errEnded(sb *sandbox.Sandbox) error {
	why := string(sb.Status.Reason)
	if sb.Status.Message != "" {
		why += ": " + sb.Status.Message
	}
	return errs.New(errs.FailedPrecondition, "sandbox %s has ended (%s)", sb.ID, why).WithHint("`r sandbox logs %s` shows what it printed", sb.ID)
}
