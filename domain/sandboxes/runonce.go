package sandboxes

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/entity/informer"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

const (
	// defaultStart is how long the start of a sandbox for one command may take.
	defaultStart = time.Minute
	// onceLease is how long such a sandbox outlives the server that owns it.
	onceLease = 30 * time.Second
	// onceStop is the time between SIGTERM and SIGKILL for the sandbox's
	// remaining processes: the command has ended.
	onceStop = time.Second
	// endTimeout bounds the deletion of a sandbox after its caller has gone.
	endTimeout = 10 * time.Second
)

// RunOnceRequest is a command to run in a new sandbox.
type RunOnceRequest struct {
	CreateRequest // Command runs without a main process beside it

	ProcessEnv   map[string]string // variables of the process, not of its sandbox
	TTY          bool
	Rows, Cols   uint16        // size of the terminal
	NoInput      bool          // its input is /dev/null
	Keep         bool          // keep the sandbox after the process has ended
	StartTimeout time.Duration // time within which it must run; 0: a minute
}

// RunOnce creates a sandbox, starts a process in it as soon as the sandbox
// runs, and returns both. The caller closes the process; Close also deletes the
// sandbox, without waiting for the deletion. If this server is killed, the
// sandbox is deleted when its lease lapses; that of an execution has no lease, and
// stays for the controller of executions. Errors: those of Create and Exec;
// ResourceExhausted if no node had room in time; FailedPrecondition if the
// sandbox could not be set up.
func (s *Service) RunOnce(ctx context.Context, project string, req RunOnceRequest) (id.Sandbox, Process, error) {
	if len(req.Command) == 0 {
		return "", nil, errs.New(errs.InvalidArgument, "there is no command to run")
	}
	if err := CheckProcess(req.Command, req.ProcessEnv); err != nil {
		return "", nil, err
	}
	spec := ExecSpec{Command: req.Command, Env: pairs(req.ProcessEnv), TTY: req.TTY, Rows: req.Rows, Cols: req.Cols, NoInput: req.NoInput}
	if req.Agent != "" { // its sandbox may be older than the request
		spec.WorkDir, spec.User = req.Workdir, req.User
	}
	req.Command = nil
	sb, end, err := s.ephemeral(ctx, project, &req, false)
	if err != nil {
		return "", nil, err
	}
	p, err := s.start(ctx, sb.GetID(), spec, req.Note)
	if err != nil {
		end()
		return sb.GetID(), nil, err
	}
	return sb.GetID(), &once{Process: p, end: end}, nil
}

// ephemeral returns a new sandbox without a main process, which runs, for a
// program. end deletes it, unless the request keeps it.
func (s *Service) ephemeral(ctx context.Context, project string, req *RunOnceRequest, confined bool) (_ *sandbox.Sandbox, end func(), err error) {
	req.Idle = true
	sb, of, err := s.prepare(ctx, project, req.CreateRequest)
	if err != nil {
		return nil, nil, err
	}
	if err := s.Policies.CheckProgram(ctx, sb, confined); err != nil {
		return nil, nil, err
	}
	t := &sb.Spec.Template
	if req.StopTimeout == nil && !req.Keep {
		t.StopTimeout = onceStop
	}
	remove := func() {}
	switch {
	case req.Keep:
	case req.Execution != "": // its owner, which outlives this server
		remove = func() { s.deleteOnce(ctx, sb.GetID()) }
	default:
		lease, err := s.Store.Grant(ctx, onceLease)
		if err != nil {
			return nil, nil, err
		}
		sb.Lease = lease.ID
		remove = s.keepLease(ctx, lease.ID)
	}
	defer func() {
		if err != nil {
			remove()
		}
	}()
	placed, err := s.place(ctx, sb, of)
	if err != nil {
		return nil, nil, err
	}
	sb = placed
	if reached(sb, sandbox.WaitUntilRunning) {
		return sb, remove, nil
	}
	return sb, remove, s.awaitStart(ctx, sb.GetID(), cmp.Or(req.StartTimeout, startTimeout(sb)), req.Note)
}

// startTimeout returns how long the start of a sandbox may take, that of its
// start command included.
func startTimeout(sb *sandbox.Sandbox) time.Duration {
	if p := sb.Spec.Template.Probe; p != nil && len(sb.Spec.Template.Start) > 0 {
		return defaultStart + p.Deadline
	}
	return defaultStart
}

// once is a process whose sandbox is deleted with it.
type once struct {
	Process
	end func()
}

// Close implements Process.
func (o *once) Close() error {
	o.end() // first: the process's agent may take no message
	return o.Process.Close()
}

// deleteOnce deletes the sandbox of an execution, if it was made.
func (s *Service) deleteOnce(ctx context.Context, sid id.Sandbox) {
	if sid == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
	defer cancel()
	if err := s.Delete(ctx, sid); err != nil && !errs.Is(err, errs.NotFound) {
		s.Logger.Warn("delete the sandbox of an execution; the end of the execution will", "sandbox", string(sid), "error", err)
	}
}

// keepLease renews a lease until end is called. end revokes the lease, which deletes
// the entities bound to it; if that fails, the lease lapses.
func (s *Service) keepLease(ctx context.Context, lease schema.LeaseID) (end func()) {
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

// awaitStart waits until a sandbox runs, and passes note the reason why it does
// not run yet.
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
