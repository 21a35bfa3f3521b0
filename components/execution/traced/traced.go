// Package traced records what a driver of sandboxes does as spans: the operation
// and the sandbox, never a command, an environment or output.
package traced

import (
	"context"
	"time"

	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/pkg/trace"
)

// logLister is a driver that can list the sandboxes whose logs it keeps.
type logLister interface {
	LogIDs(ctx context.Context) ([]string, error)
}

// Driver is an execution.Driver whose operations that start, change and end
// sandboxes are spans of the traces of their contexts. Those of controllers, which
// act on no request, begin a trace.
type Driver struct {
	execution.Driver
	tracer *trace.Tracer
}

// New returns a Driver over d. t begins the traces of controllers; nil: they have
// none.
func New(d execution.Driver, t *trace.Tracer) Driver { return Driver{d, t} }

// LogIDs lists the sandboxes whose logs the driver keeps, if it can say that.
func (d Driver) LogIDs(ctx context.Context) ([]string, error) {
	if l, ok := d.Driver.(logLister); ok {
		return l.LogIDs(ctx)
	}
	return nil, nil
}

func (d Driver) start(ctx context.Context, operation, id string) (_ context.Context, span trace.Span) {
	if trace.Parent(ctx) == "" {
		ctx, span = d.tracer.Begin(ctx, "", operation, trace.Internal)
	} else {
		ctx, span = trace.Start(ctx, operation, trace.Internal)
	}
	span.Text("runtime.sandbox", id)
	return ctx, span
}

// Ensure implements execution.Driver.
func (d Driver) Ensure(ctx context.Context, s execution.Spec) (execution.Instance, error) {
	ctx, span := d.start(ctx, "sandbox set up", s.ID)
	span.Text("runtime.snapshot", s.Restore)
	i, err := d.Driver.Ensure(ctx, s)
	span.End(err)
	return i, err
}

// Configure implements execution.Driver.
func (d Driver) Configure(ctx context.Context, id string, i execution.Identity) error {
	ctx, span := d.start(ctx, "sandbox configure", id)
	err := d.Driver.Configure(ctx, id, i)
	span.End(err)
	return err
}

// Exec implements execution.Driver. The span ends when the process runs.
func (d Driver) Exec(ctx context.Context, id string, e execution.ExecSpec) (execution.Process, error) {
	ctx, span := d.start(ctx, "sandbox exec", id)
	p, err := d.Driver.Exec(ctx, id, e)
	span.End(err)
	return p, err
}

// Stop implements execution.Driver.
func (d Driver) Stop(ctx context.Context, id string, grace time.Duration) (execution.Instance, error) {
	ctx, span := d.start(ctx, "sandbox stop", id)
	i, err := d.Driver.Stop(ctx, id, grace)
	span.End(err)
	return i, err
}

// Delete implements execution.Driver.
func (d Driver) Delete(ctx context.Context, id string) error {
	ctx, span := d.start(ctx, "sandbox delete", id)
	err := d.Driver.Delete(ctx, id)
	span.End(err)
	return err
}

// Dial implements execution.Driver. The span ends when the connection is open.
func (d Driver) Dial(ctx context.Context, id string, port int) (execution.Conn, error) {
	ctx, span := d.start(ctx, "sandbox dial", id)
	c, err := d.Driver.Dial(ctx, id, port)
	span.End(err)
	return c, err
}

// Snapshot implements execution.Driver.
func (d Driver) Snapshot(ctx context.Context, id, snapshot string, o execution.SnapshotOptions) (execution.SnapshotInfo, error) {
	ctx, span := d.start(ctx, "sandbox snapshot", id)
	span.Text("runtime.snapshot", snapshot)
	i, err := d.Driver.Snapshot(ctx, id, snapshot, o)
	span.End(err)
	return i, err
}
