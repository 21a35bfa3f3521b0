package templates

import (
	"strings"
	"time"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/pkg/errs"
)

// Ready is the check of a start command: a command, or a path of a port, or a
// port alone.
type Ready struct {
	Port    int64
	Path    string        // answers GET with a status below 400
	Command []string      // exits with 0
	Timeout time.Duration // longest time to the first success; 0: sandbox.DefaultDeadline
}

// probe returns the check as a probe, nil if there is none. InvalidArgument if
// it is not one of one kind, or there is no start command to check.
func (r *Ready) probe(start []string) (*sandbox.Probe, error) {
	if r == nil {
		return nil, nil
	}
	p := &sandbox.Probe{}
	p.SetDefaults()
	p.Port, p.Command = r.Port, r.Command
	if r.Timeout != 0 {
		p.Deadline = r.Timeout
	}
	bad := func(format string, args ...any) (*sandbox.Probe, error) {
		return nil, errs.New(errs.InvalidArgument, "readiness: "+format, args...)
	}
	switch {
	case len(start) == 0:
		return bad("there is no start command that could become ready")
	case p.Deadline < sandbox.MinDeadline:
		return bad("a timeout of %s is shorter than %s", p.Deadline, sandbox.MinDeadline)
	case len(r.Command) > 0 && (r.Port != 0 || r.Path != ""):
		return bad("it is either a command or a port, not both")
	case len(r.Command) > 0:
		p.Kind = sandbox.ProbeKindExec
	case r.Port < 1 || r.Port > sandbox.MaxPort:
		return bad("%d is not a port: a port is 1 to %d", r.Port, sandbox.MaxPort)
	case r.Path == "":
		p.Kind = sandbox.ProbeKindTCP
	case !strings.HasPrefix(r.Path, "/"):
		return bad("path %q does not begin with /", r.Path)
	default:
		p.Kind, p.Path = sandbox.ProbeKindHTTP, r.Path
	}
	return p, nil
}
