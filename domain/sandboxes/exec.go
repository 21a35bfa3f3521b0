package sandboxes

import (
	"cmp"
	"context"
	"strconv"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/domain/apps"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/informer"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// DetailExitCode is the detail of the error for a command that cannot be run:
// the exit code with which a shell reports it (127 not found, 126 otherwise).
const DetailExitCode = "exit_code"

// ExecRequest describes a process and the sandbox for it: a named one, or a
// ready one of an app's service.
type ExecRequest struct {
	Sandbox id.Sandbox
	Project string // with App: its project; "": the default
	App     string // if Sandbox is empty
	Service string // with App: the service; "": app.DefaultService

	Command    []string
	Env        map[string]string
	Workdir    string
	User       string
	TTY        bool
	Rows, Cols uint16 // size of the terminal
	NoInput    bool   // its input is /dev/null
	Detached   bool   // it goes on without its caller
	Tag        string // its name in the list of processes
	Internal   bool   // it is the server's own, for which policies do not hold

	// Note, if set, is called with the reason if the sandbox ended and the
	// process with it.
	Note func(text string)
}

// Exec starts a process in a sandbox, waiting until the sandbox runs, and
// returns both. The caller closes the process. For a command that cannot be run
// it returns the sandbox and an error for which ExitCode is true. Other errors:
// InvalidArgument for a command or environment with which no process can be
// started, FailedPrecondition if the sandbox has ended or the service has no
// ready one.
func (s *Service) Exec(ctx context.Context, req ExecRequest) (id.Sandbox, Process, error) {
	if len(req.Command) == 0 {
		return "", nil, errs.New(errs.InvalidArgument, "there is no command to execute")
	}
	if err := CheckProcess(req.Command, req.Env); err != nil {
		return "", nil, err
	}
	sb, err := s.execTarget(ctx, &req)
	if err != nil {
		return "", nil, err
	}
	sid := sb.GetID()
	if !req.Internal {
		if err := s.Policies.CheckProgram(ctx, sb, false); err != nil {
			return sid, nil, err
		}
	}
	spec := ExecSpec{Command: req.Command, Env: pairs(req.Env), WorkDir: req.Workdir, User: req.User, TTY: req.TTY, Rows: req.Rows, Cols: req.Cols, NoInput: req.NoInput, Detached: req.Detached, Tag: req.Tag}
	p, err := s.start(ctx, sid, spec, req.Note)
	return sid, p, err
}

// ExitCode returns the exit code with which a shell reports that a command
// cannot be run, and whether err, returned by Exec, reports that.
func ExitCode(err error) (code int64, ok bool) {
	code, perr := strconv.ParseInt(errs.Detail(err, DetailExitCode), 10, 64)
	return code, perr == nil
}

// execTarget returns the sandbox in which to run.
func (s *Service) execTarget(ctx context.Context, req *ExecRequest) (*sandbox.Sandbox, error) {
	if (req.Sandbox == "") == (req.App == "") {
		return nil, errs.New(errs.InvalidArgument, "either a sandbox or an app says where to run the command")
	}
	if req.App != "" {
		return s.ready(ctx, req.Project, req.App, req.Service)
	}
	return s.Running(ctx, req.Sandbox)
}

// RunningUnconfined is Running for programs outside the second layer.
// PermissionDenied if the policy of the project does not permit them.
func (s *Service) RunningUnconfined(ctx context.Context, sid id.Sandbox) (*sandbox.Sandbox, error) {
	sb, err := s.Running(ctx, sid)
	if err != nil {
		return nil, err
	}
	return sb, s.Policies.CheckProgram(ctx, sb, false)
}

// Running returns a sandbox when it runs. It resumes a paused one.
// FailedPrecondition if it has ended.
func (s *Service) Running(ctx context.Context, sid id.Sandbox) (*sandbox.Sandbox, error) {
	// A sandbox that runs, or ran a moment ago, needs no read of the store.
	sb := informer.Of[sandbox.Sandbox](s.Informers).Get(schema.ID(sid))
	if sb == nil || !reached(sb, sandbox.WaitUntilRunning) || sb.Spec.Desired == sandbox.DesiredStatePaused {
		if sb, err := entity.Get[sandbox.Sandbox](ctx, s.Store, sid); err != nil {
			return nil, err
		} else if err := s.awake(ctx, sb); err != nil {
			return nil, err
		}
		var err error
		if sb, err = s.Wait(ctx, sid, sandbox.WaitUntilRunning); err != nil {
			return nil, err
		}
	}
	if sb.Status.Phase.Ended() {
		return nil, errEnded(sb)
	}
	return sb, nil
}

// ready returns a ready sandbox of a service of an app's active version.
func (s *Service) ready(ctx context.Context, project, name, service string) (*sandbox.Sandbox, error) {
	a, err := s.Apps.Find(ctx, project, name)
	if err != nil {
		return nil, err
	}
	service = cmp.Or(service, app.DefaultService)
	all, err := OfApp(ctx, s.Store, a)
	if err != nil {
		return nil, err
	}
	for _, sb := range all {
		if sb.Spec.AppVersion == a.Status.Active() && sb.Spec.Service == service && sb.Status.Ready {
			return sb, nil
		}
	}
	if a.Status.Active() == "" {
		_, err := apps.ActiveVersion(ctx, s.Store, a)
		return nil, err
	}
	return nil, errs.New(errs.FailedPrecondition, "no sandbox of service %s of app %s is ready", service, name).
		WithHint("`r app status %s` shows what runs; `r app run --app %s -- COMMAND` runs a command in a new one", name, name)
}
