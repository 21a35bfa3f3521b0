package sandboxes

import (
	"context"
	"log/slog"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/domain/apps"
	"miren.dev/runtime/domain/disks"
	"miren.dev/runtime/domain/policies"
	"miren.dev/runtime/domain/secrets"
	"miren.dev/runtime/domain/templates"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/informer"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/logstore"
	"miren.dev/runtime/pkg/schema"
)

// Service is the operations on the sandboxes of one store. It is safe for
// concurrent use.
type Service struct {
	Store     entity.Store
	Policies  *policies.Store // nil: there are no policies
	Informers *informer.Set   // informers of Store, for Wait, Exec and Logs
	Apps      *apps.Service
	Templates *templates.Service
	Disks     *disks.Service
	Secrets   *secrets.Service
	Node      Node           // the machine that runs the sandboxes
	Sealer    *schema.Sealer // seals secret variables
	// Image resolves a user's name of an image (a base image, a reference) to a
	// reference of the node's image store, and makes the image if necessary.
	Image  func(ctx context.Context, name string) (string, error)
	Logger *slog.Logger
	Kept   *logstore.Store // output of the sandboxes of apps, gone ones included; nil: none is kept
	Demand *Demand         // counts the requests for warm sandboxes
	// NoPools: requests make no warm pools; those that exist are used.
	NoPools bool

	claims claims
	agents keyed // one request of an agent at a time
}

// New completes a service whose exported fields are set: it makes the indexes
// of its informers.
func New(s *Service) *Service {
	if s.Demand == nil {
		s.Demand = &Demand{}
	}
	s.addIndexes()
	return s
}

// errEnded is the error of an operation on a sandbox that has ended.
func errEnded(sb *sandbox.Sandbox) error {
	why := string(sb.Status.Reason)
	if sb.Status.Message != "" {
		why += ": " + sb.Status.Message
	}
	return errs.New(errs.FailedPrecondition, "sandbox %s has ended (%s)", sb.ID, why).WithHint("`r sandbox logs %s` shows what it printed", sb.ID)
}
