package sandboxes

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/entity"
)

const (
	// signaled is the smallest exit code of a process that a signal ended;
	// killed is the exit code of SIGKILL.
	signaled = 128
	killed   = signaled + 9
	// endSeen is how long the end of a sandbox may take to be recorded after
	// its processes have ended.
	endSeen = 5 * time.Second
)

// start starts a process whose end is explained by the end of its sandbox.
func (s *Service) start(ctx context.Context, sid id.Sandbox, spec ExecSpec, note func(string)) (Process, error) {
	p, err := s.Node.Exec(ctx, sid, spec)
	if err != nil {
		return nil, err
	}
	return &process{Process: p, s: s, sid: sid, note: note}, nil
}

// process is a process that knows its sandbox.
type process struct {
	Process
	s    *Service
	sid  id.Sandbox
	note func(string)

	mu     sync.Mutex
	reason sandbox.EndReason
}

// Reason implements Process.
func (p *process) Reason() sandbox.EndReason {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.reason
}

// Wait implements Process. If the process or its sandbox ran out of memory, or
// the sandbox ran out of time or was stopped, the process has the exit code of
// SIGKILL, and note is called with the reason.
func (p *process) Wait(ctx context.Context) (int, error) {
	code, err := p.Process.Wait(ctx)
	if ctx.Err() != nil || err == nil && code < signaled {
		return code, err
	}
	sb := p.ended(ctx, err != nil)
	if sb == nil {
		return code, err
	}
	reason, why := cmp.Or(p.Process.Reason(), sb.Status.Reason), ""
	switch reason {
	case "":
		return code, err
	case sandbox.EndReasonOOM:
		why = outOfMemory(sb)
	case sandbox.EndReasonTTL:
		why = "the sandbox reached the end of its time to live"
		if sb.Spec.TTL != nil {
			why += " of " + sb.Spec.TTL.String()
		}
	case sandbox.EndReasonUser, sandbox.EndReasonIdle:
		why = "the sandbox was stopped (" + string(reason) + ")"
	default:
		if err != nil {
			return 0, errEnded(sb)
		}
		return code, nil
	}
	p.mu.Lock()
	p.reason = reason
	p.mu.Unlock()
	if p.note != nil {
		p.note(why)
	}
	if err != nil {
		return killed, nil
	}
	return code, nil
}

// outOfMemory says that a process was killed for memory, and what to do.
func outOfMemory(sb *sandbox.Sandbox) string {
	advice := "make it with a larger --memory"
	if sb.Spec.App != "" && sb.Spec.Service != "" {
		advice = fmt.Sprintf("raise memory of [services.%s] in app.toml", sb.Spec.Service)
	}
	return fmt.Sprintf("killed: out of memory: the limit of its sandbox is %d MiB: %s", sb.Spec.Template.Resources.MemoryBytes>>20, advice)
}

// ended returns the sandbox, nil if that is not known. With lost, its agent is
// gone, so it waits for the record of its end.
func (p *process) ended(ctx context.Context, lost bool) *sandbox.Sandbox {
	if lost {
		wctx, cancel := context.WithTimeout(ctx, endSeen)
		defer cancel()
		if sb, err := p.s.Wait(wctx, p.sid, sandbox.WaitUntilEnded); err == nil {
			return sb
		}
	}
	sb, err := entity.Get[sandbox.Sandbox](ctx, p.s.Store, p.sid)
	if err != nil {
		return nil
	}
	return sb
}
