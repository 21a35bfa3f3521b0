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
	Informers *informer.Set // informers of Store, for Wait, Exec and Logs
	Apps      *apps.Service
	Node      Node           // the machine that runs the sandboxes
	Sealer    *schema.Sealer // seals secret variables
	// Image resolves a user's name of an image (a base image, a reference) to a
	// reference of the node's image store, and makes the image if necessary.
	Image  func(ctx context.Context, name string) (string, error)
	Logger *slog.Logger
}

// errEnded is the error of an operation on a sandbox that has ended.
func errEnded(sb *sandbox.Sandbox) error {
	why := string(sb.Status.Reason)
	if sb.Status.Message != "" {
		why += ": " + sb.Status.Message
	}
	return errs.New(errs.FailedPrecondition, "sandbox %s has ended (%s)", sb.ID, why).WithHint("`r sandbox logs %s` shows what it printed", sb.ID)
}
