package sandboxes

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/informer"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

const (
	// defaultStart is how long a sandbox for one command may take until it runs.
	defaultStart = time.Minute
	// onceLease is how long such a sandbox outlives the server that owns it.
	onceLease = 30 * time.Second
	// onceStop is what its processes have between SIGTERM and SIGKILL: the command
	// has ended.
	onceStop = time.Second
	// endTimeout bounds the deletion of a sandbox after its caller has gone.
	endTimeout = 10 * time.Second
)

// RunOnceRequest is a command to run in a new sandbox.
type RunOnceRequest struct {
	CreateRequest // Command is what runs, beside no main process

	TTY          bool
	Rows, Cols   uint16        // of the terminal
	Keep         bool          // the sandbox stays
	StartTimeout time.Duration // until it must run; 0: a minute
	// Note, if set, is told what the user should know: why the sandbox does not run
	// yet, or why it ended and the process with it.
	Note func(text string)
}

// RunOnce creates a sandbox, starts a process in it as soon as it runs, and returns
// both. The caller closes the process, which deletes the sandbox and does not wait
// until that is done. If this server is killed, the sandbox is deleted when its
// lease has lapsed. Errors: those of Create and Exec; ResourceExhausted if no node
// had room in time; FailedPrecondition if the sandbox could not be set up.
func (s *Service) RunOnce(ctx context.Context, project string, req RunOnceRequest) (_ id.Sandbox, _ Process, err error) {
	if len(req.Command) == 0 {
		return "", nil, errs.New(errs.InvalidArgument, "there is no command to run")
	}
	sb, err := s.prepare(ctx, project, req.CreateRequest)
	if err != nil {
		return "", nil, err
	}
	t := &sb.Spec.Template
	t.Command, t.Idle = nil, true
	if req.StopTimeout == nil && !req.Keep {
		t.StopTimeout = onceStop
	}
	end := func() {}
	if !req.Keep {
		lease, gerr := s.Store.Grant(ctx, onceLease)
		if gerr != nil {
			return "", nil, gerr
		}
		sb.Lease = lease.ID
		end = s.hold(ctx, lease.ID)
		defer func() {
			if err != nil {
				end()
			}
		}()
	}
	if err := entity.Create(ctx, s.Store, sb); err != nil {
		return "", nil, err
	}
	if err := s.awaitStart(ctx, sb.GetID(), cmp.Or(req.StartTimeout, defaultStart), req.Note); err != nil {
		return "", nil, err
	}
	p, err := s.start(ctx, sb.GetID(), ExecSpec{Command: req.Command, TTY: req.TTY, Rows: req.Rows, Cols: req.Cols}, req.Note)
	if err != nil {
		return sb.GetID(), nil, err
	}
	return sb.GetID(), &once{Process: p, end: end}, nil
}

// once is a process whose sandbox ends with it.
type once struct {
	Process
	end func()
}

// Close implements Process.
func (o *once) Close() error {
	defer o.end()
	return o.Process.Close()
}

// hold renews a lease until end is called, which ends it and deletes what is bound
// to it. After a failure of that the lease lapses.
func (s *Service) hold(ctx context.Context, lease schema.LeaseID) (end func()) {
	ctx = context.WithoutCancel(ctx)
	stop := make(chan struct{})
	go func() {
		tick := time.NewTicker(onceLease / 4)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				ctx, cancel := context.WithTimeout(ctx, onceLease/4)
				_, err := s.Store.KeepAlive(ctx, lease)
				cancel()
				if errs.Is(err, errs.NotFound) {
					return
				}
			case <-stop:
				return
			}
		}
	}()
	return sync.OnceFunc(func() {
		close(stop)
		ctx, cancel := context.WithTimeout(ctx, endTimeout)
		defer cancel()
		if err := s.Store.Revoke(ctx, lease); err != nil && !errs.Is(err, errs.NotFound) {
			s.Logger.Warn("delete the sandbox of a command; its lease will", "lease", string(lease), "error", err)
		}
	})
}

// awaitStart waits until a sandbox runs, and tells note why it does not yet.
func (s *Service) awaitStart(ctx context.Context, sid id.Sandbox, timeout time.Duration, note func(string)) error {
	wctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	said := ""
	sb, err := informer.Of[sandbox.Sandbox](s.Informers).Await(wctx, schema.ID(sid), func(sb *sandbox.Sandbox) (bool, error) {
		if m := sb.Status.Message; m != said && m != "" && !sb.Status.Phase.Ended() {
			said = m
			if note != nil {
				note("waiting: " + m)
			}
		}
		return reached(sb, sandbox.WaitUntilRunning), nil
	})
	switch {
	case err != nil && ctx.Err() == nil && errors.Is(wctx.Err(), context.DeadlineExceeded):
		e := errs.New(errs.DeadlineExceeded, "the sandbox did not run within %v", timeout)
		if said != "" {
			e = errs.New(errs.ResourceExhausted, "the sandbox did not run within %v: %s", timeout, said)
		}
		return e.WithHint("`r node list` shows what the nodes have left")
	case err != nil:
		return err
	case sb.Status.Phase.Ended():
		return errNotStarted(sb)
	}
	return nil
}

// errNotStarted is the error for a sandbox that ended before it ran.
func errNotStarted(sb *sandbox.Sandbox) error {
	text := "the sandbox did not start"
	if sb.Status.Message != "" {
		text += ": " + sb.Status.Message
	}
	e := errs.New(errs.FailedPrecondition, "%s (%s)", text, sb.Status.Reason)
	if len(sb.Status.LogTail) > 0 {
		return e.WithHint("it printed:\n%s", schema.Cell(sb.Status.LogTail))
	}
	return e
}
