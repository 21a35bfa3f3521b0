package execution

import (
	"bytes"
	"context"
	"errors"
	"io"
	"path"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"miren.dev/runtime/api/execution"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/domain/executions"
	"miren.dev/runtime/domain/policies"
	"miren.dev/runtime/domain/quotas"
	"miren.dev/runtime/domain/sandboxes"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/trace"
)

const (
	// startTimeout bounds the time until the sandbox of an attempt runs: the first
	// one of a template makes its image.
	startTimeout = 10 * time.Minute
	// sandboxMargin is how much longer than its program a sandbox may run. It ends
	// by itself then, whatever became of the server.
	sandboxMargin = 2 * time.Minute
	// killTimeout is how long a killed process may take to end.
	killTimeout = 5 * time.Second
	// resultTimeout bounds the reading of the result.
	resultTimeout = 10 * time.Second
	// sampleEvery is the time between two readings of the memory in use.
	sampleEvery = 2 * time.Second
	// stopTimeout bounds the writes of an attempt that the end of the server
	// interrupts; the next server makes those that are missing.
	stopTimeout = 2 * time.Second
	// exitTimeout is the exit code of a program whose time was over, as timeout(1) has it.
	exitTimeout = 124
	// signaled is the smallest exit code of a process that a signal ended; killed
	// is that of SIGKILL.
	signaled = 128
	killed   = signaled + int(syscall.SIGKILL)
)

// Causes that end an attempt early.
var (
	errCancelled = errors.New("cancelled")
	errDeleted   = errors.New("deleted")
	errForeign   = errors.New("another server makes this execution")
)

// ending is how an attempt ended.
type ending struct {
	outcome   execution.Outcome
	exitCode  *int64
	message   string
	result    string        // key of the object with the output; "": there is none
	permanent bool          // another attempt would end in the same way
	refused   bool          // the quota has no room for it now, or its request cannot be read: it was no attempt
	delay     time.Duration // least time before another attempt
}

// attempt is an attempt that this process makes. Its goroutine alone uses e.
type attempt struct {
	r      *Reconciler
	e      *execution.Execution
	server context.Context // ends when the server stops
	ctx    context.Context // ends earlier if the attempt is cancelled
	cancel context.CancelCauseFunc

	live *executions.Live
	done func()                 // ends the live output
	note atomic.Pointer[string] // last message of the sandbox for users
}

func newAttempt(ctx context.Context, r *Reconciler, e *execution.Execution) *attempt {
	a := &attempt{r: r, e: e, server: ctx}
	a.ctx, a.cancel = context.WithCancelCause(ctx)
	return a
}

// perform makes the attempt and records its end.
func (a *attempt) perform() {
	var span trace.Span
	a.ctx, span = a.r.Traces.Begin(a.ctx, "", "execution attempt", trace.Internal)
	span.Text("runtime.execution", string(a.e.ID))
	span.Int("runtime.attempt", a.e.Status.Attempt)
	defer span.End(nil)
	end := a.run()
	span.Text("runtime.outcome", string(end.outcome))
	switch cause := context.Cause(a.ctx); {
	case errors.Is(cause, errDeleted), errors.Is(cause, errForeign):
		return
	case errors.Is(cause, errCancelled):
		end = ending{outcome: execution.OutcomeCancelled, message: "while it ran"}
	case cause != nil: // the server stops
		end = ending{outcome: execution.OutcomeInterrupted, message: "the server was stopped"}
	}
	if err := a.record(end); err != nil && !errs.Is(err, errs.NotFound) {
		a.r.Logger.Warn("cannot record the end of an attempt", "execution", string(a.e.ID), "attempt", a.e.Status.Attempt, "error", err)
	}
}

// record records the end of the attempt, with its output, and repeats it while
// the store is unavailable and the server runs.
func (a *attempt) record(end ending) error {
	ctx, cancel := context.WithCancel(context.WithoutCancel(a.ctx))
	defer cancel()
	stop := context.AfterFunc(a.server, func() { time.AfterFunc(stopTimeout, cancel) })
	defer stop()
	for pause := 100 * time.Millisecond; ; pause = min(2*pause, 5*time.Second) {
		err := a.recordOnce(ctx, end)
		if err == nil || !errs.Is(err, errs.Unavailable) && !errs.Is(err, errs.Conflict) {
			return err
		}
		a.r.Logger.Warn("record the end of an attempt again", "execution", string(a.e.ID), "error", err)
		select {
		case <-ctx.Done():
			return err
		case <-time.After(pause):
		}
	}
}

// recordOnce records the end if the attempt is still this process's.
func (a *attempt) recordOnce(ctx context.Context, end ending) error {
	e, err := entity.Get[execution.Execution](ctx, a.r.Store, a.e.ID)
	if err != nil {
		return err
	}
	if now := &e.Status; now.Phase != execution.PhaseRunning || now.Server != a.r.server || now.Attempt != a.e.Status.Attempt {
		return errs.New(errs.FailedPrecondition, "the end was recorded, or another server makes the execution")
	}
	e.Status = a.e.Status
	out := a.live.Output()
	if len(out.Stdout)+len(out.Stderr)+len(out.Result) > 0 {
		key, err := executions.WriteOutput(ctx, a.r.Executions.Objects, a.e, &out)
		if err != nil {
			return err
		}
		end.result = key
	}
	return a.r.end(ctx, e, end)
}

// run runs the program, and returns how it ended.
func (a *attempt) run() ending {
	sid, p, err := a.start()
	if err != nil {
		return a.notStarted(err)
	}
	defer p.Close()
	stop := context.AfterFunc(a.ctx, func() { _ = p.Close() })
	defer stop()
	began := time.Now()
	st := &a.e.Status
	st.Sandbox, st.StartedAt, st.Metrics.Setup = string(sid), &began, began.Sub(*st.BegunAt)

	expired := make(chan struct{})
	timer := time.AfterFunc(a.e.Spec.Timeout, func() {
		close(expired)
		ctx, cancel := context.WithTimeout(context.WithoutCancel(a.ctx), killTimeout)
		defer cancel()
		_ = p.Signal(ctx, int(syscall.SIGKILL))
		// A process that does not end by it has lost its agent.
		time.AfterFunc(killTimeout, func() { _ = p.Close() })
	})
	defer timer.Stop()
	// The program runs: what it prints is taken while its start is recorded.
	var streams errgroup.Group
	streams.Go(func() error { _, err := io.Copy(a.live.Stdout(), p.Stdout()); return err })
	streams.Go(func() error { _, err := io.Copy(a.live.Stderr(), p.Stderr()); return err })
	usage := a.measure(sid)
	if err := a.r.write(a.ctx, "start", a.e); errs.Is(err, errs.Conflict) || errs.Is(err, errs.NotFound) {
		a.cancel(errForeign)
	} else if err != nil && a.ctx.Err() == nil {
		a.r.Logger.Warn("cannot record the start of a program", "execution", string(a.e.ID), "error", err)
	}
	_ = streams.Wait() // streams end early only with their process, whose end says why
	code, err := p.Wait(a.ctx)
	timer.Stop()
	st.Metrics.Wall = time.Since(began)
	st.Metrics.CPU, st.Metrics.MemoryBytes = usage()
	if a.ctx.Err() != nil {
		return ending{}
	}
	if err == nil {
		a.readResult(sid)
	}
	select {
	case <-expired:
		if err != nil || code == killed {
			return ending{outcome: execution.OutcomeTimeout, exitCode: ptr(int64(exitTimeout)), message: "the program was ended after " + a.e.Spec.Timeout.String()}
		}
	default:
	}
	return a.ended(sid, p.Reason(), code, err)
}

// start starts the program.
func (a *attempt) start() (id.Sandbox, sandboxes.Process, error) {
	e := a.e
	req, err := executions.ReadRequest(a.ctx, a.r.Executions.Objects, e)
	if err != nil {
		return "", nil, noRequest{err}
	}
	secrets := map[string]string{}
	for k, sec := range e.Spec.Secrets {
		if secrets[k], err = a.r.Sealer.Open(sec); err != nil {
			return "", nil, errs.Wrap(err, "secret %s", k)
		}
	}
	env := executions.Environment(req, secrets, e.GetID(), a.resultFile())
	note := func(text string) { a.note.Store(&text) }
	once := sandboxes.RunOnceRequest{
		CreateRequest: a.sandboxOf(req), ProcessEnv: env, NoInput: len(req.Stdin) == 0, Keep: req.Agent != "", StartTimeout: startTimeout,
	}
	once.Note = note
	var sid id.Sandbox
	var p sandboxes.Process
	switch {
	case len(req.Code) > 0:
		r := executions.Program(req)
		r.RunOnceRequest, r.Sandbox = once, req.Sandbox
		if req.Sandbox != "" || req.Agent != "" { // programs of several executions may run in it
			r.Dir = a.programDir()
		}
		sid, p, err = a.r.Sandboxes.RunCode(a.ctx, req.Project, r)
	case req.Sandbox != "":
		sid, p, err = a.r.Sandboxes.Exec(a.ctx, sandboxes.ExecRequest{
			Sandbox: req.Sandbox, Command: req.Command, Env: env, Workdir: req.Workdir, User: req.User, NoInput: once.NoInput, Note: note,
		})
	default:
		once.Command = req.Command
		sid, p, err = a.r.Sandboxes.RunOnce(a.ctx, req.Project, once)
	}
	if err != nil {
		return sid, nil, err
	}
	go func() { // it ends with the process
		_, _ = io.Copy(p.Stdin(), bytes.NewReader(req.Stdin))
		_ = p.Stdin().Close()
	}()
	return sid, p, nil
}

// sandboxOf describes the new sandbox for a request.
func (a *attempt) sandboxOf(req *execution.SubmitRequest) sandboxes.CreateRequest {
	c := sandboxes.CreateRequest{
		Image: req.Image, Template: req.Template, Agent: req.Agent, Workdir: req.Workdir, User: req.User, Network: req.Network, Egress: req.Egress,
		APIKey: id.APIKey(a.e.Spec.APIKey),
	}
	if req.CPUMillis != nil {
		c.CPUMillis = *req.CPUMillis
	}
	if req.MemoryBytes != nil {
		c.MemoryBytes = *req.MemoryBytes
	}
	for _, v := range req.Volumes {
		c.Volumes = append(c.Volumes, sandboxes.Volume{Disk: v.Disk, Path: v.Path, ReadOnly: v.ReadOnly != nil && *v.ReadOnly})
	}
	if req.Agent == "" {
		c.Execution, c.TTL = a.e.GetID(), a.e.Spec.Timeout+startTimeout+sandboxMargin
	}
	return c
}

// resultFile is the path of the file for the program's result.
func (a *attempt) resultFile() string { return path.Join("/tmp", string(a.e.ID)+".result") }

// readResult reads the file that the program may have written as its result,
// and removes what the execution put into a sandbox that stays. A sandbox without
// a shell has no result.
func (a *attempt) readResult(sid id.Sandbox) {
	ctx, cancel := context.WithTimeout(a.ctx, resultTimeout)
	defer cancel()
	_, p, err := a.r.Sandboxes.Exec(ctx, sandboxes.ExecRequest{
		Sandbox: sid, NoInput: true, Internal: true,
		Command: []string{"/bin/sh", "-c", `[ ! -f "$1" ] || head -c "$2" -- "$1"; rm -rf -- "$1" "$3"`, "sh", a.resultFile(), strconv.Itoa(execution.MaxOutput + 1), a.programDir()},
	})
	if err != nil {
		a.r.Logger.Debug("cannot read the result of an execution", "execution", string(a.e.ID), "error", err)
		return
	}
	defer p.Close()
	go func() { _, _ = io.Copy(io.Discard, p.Stderr()) }() // it ends with the process
	b, _ := io.ReadAll(io.LimitReader(p.Stdout(), execution.MaxOutput+1))
	a.live.SetResult(b)
	_, _ = p.Wait(ctx)
}

// programDir is the directory of the program in a sandbox that stays, below its
// working directory.
func (a *attempt) programDir() string { return path.Join(".executions", string(a.e.ID)) }

// noRequest is the error of an attempt whose request could not be read.
type noRequest struct{ error }

func (n noRequest) Unwrap() error { return n.error }

// notStarted returns the ending of a program that did not start.
func (a *attempt) notStarted(err error) ending {
	if code, ok := sandboxes.ExitCode(err); ok {
		return ending{outcome: execution.OutcomeFailed, exitCode: &code, message: message(err)}
	}
	if n := (noRequest{}); errors.As(err, &n) && errs.Is(err, errs.Unavailable) {
		return ending{message: message(err), refused: true} // the object store is away: not the fault of the execution
	}
	return ending{outcome: execution.OutcomeSetup, message: message(err), refused: quotas.Refused(err), permanent: policies.Refused(err) || errs.Is(err, errs.InvalidArgument) || errs.Is(err, errs.NotFound)}
}

// ended returns the ending of a program that ended with an exit code, or whose
// end is not known. reason is that of the process.
func (a *attempt) ended(sid id.Sandbox, reason sandbox.EndReason, code int, err error) ending {
	end := ending{outcome: execution.OutcomeFailed}
	if note := a.note.Load(); note != nil {
		end.message = *note
	}
	if err == nil {
		end.exitCode = ptr(int64(code))
		if code == 0 {
			end.outcome = execution.OutcomeSucceeded
		}
	} else {
		end.outcome, end.message = execution.OutcomeSandbox, message(err)
	}
	if err == nil && code < signaled {
		return end
	}
	if reason == "" {
		sb, gerr := entity.Get[sandbox.Sandbox](a.ctx, a.r.Store, sid)
		if gerr != nil {
			return end
		}
		reason = sb.Status.Reason
	}
	switch reason {
	case "":
	case sandbox.EndReasonOOM:
		end.outcome = execution.OutcomeOOM
	case sandbox.EndReasonTTL:
		end.outcome = execution.OutcomeTimeout
	case sandbox.EndReasonExit: // its processes ended it
	default:
		end.outcome = execution.OutcomeSandbox
	}
	return end
}

// measure reads what the sandbox uses until the returned function is called,
// which returns the use since then.
func (a *attempt) measure(sid id.Sandbox) func() (cpu *time.Duration, memory *int64) {
	ctx, cancel := context.WithCancel(a.ctx)
	var mu sync.Mutex
	var first, last *sandbox.Stats
	var most int64
	sample := func(ctx context.Context) {
		s, err := a.r.Sandboxes.Stats(ctx, sid)
		if err != nil {
			return // it has ended
		}
		mu.Lock()
		defer mu.Unlock()
		if first == nil {
			first = s
		}
		last, most = s, max(most, s.MemoryBytes)
	}
	sample(ctx)
	var sampling sync.WaitGroup
	sampling.Go(func() {
		t := time.NewTicker(sampleEvery)
		defer t.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-t.C:
				sample(ctx)
			}
		}
	})
	return func() (*time.Duration, *int64) {
		cancel()
		sampling.Wait()
		sample(a.ctx)
		if last == nil {
			return nil, nil
		}
		return ptr(last.CPU - first.CPU), ptr(most)
	}
}

func ptr[T any](v T) *T { return &v }

// message is an error with its hint.
func message(err error) string {
	text := err.Error()
	if hint := errs.HintOf(err); hint != "" {
		text += ". Hint: " + hint
	}
	return text
}
