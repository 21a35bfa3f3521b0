package rpc

import (
	"context"
	"sync"
	"time"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/rpc"
)

// newSandboxes is how often an app's sandboxes are looked at for new ones.
const newSandboxes = time.Second

// Logs sends the output of a sandbox, or of all sandboxes of an app.
func (s *sandboxes) Logs(ctx context.Context, req *sandbox.LogsRequest, st rpc.ServerStream[rpc.None, sandbox.LogBatch]) error {
	out := &logSender{st: st}
	q := execution.LogQuery{Offset: value(req.Offset), Tail: int(value(req.Tail)), Follow: yes(req.Follow)}
	if req.Sandbox != "" {
		sb, err := entity.Get[sandbox.Sandbox](ctx, s.Store, req.Sandbox)
		if err != nil {
			return err
		}
		return s.sandboxLogs(ctx, sb, q, 0, out)
	}
	a, err := s.Service.App(ctx, req.Project, req.App)
	if err != nil {
		return err
	}
	return s.appLogs(ctx, a, req.Service, q, out)
}

// appLogs reads the sandboxes of an app one after the other, or follows all of
// them at once, those that come later too.
func (s *sandboxes) appLogs(ctx context.Context, a *app.App, svc string, q execution.LogQuery, out *logSender) error {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	failed := make(chan error, 1)
	seen := map[id.Sandbox]bool{}
	numbers := map[id.AppVersion]int64{}
	tick := time.NewTicker(newSandboxes)
	defer tick.Stop()
	for {
		list, err := s.Service.AppSandboxes(ctx, a)
		if err != nil {
			return err
		}
		for _, sb := range list {
			if seen[sb.GetID()] || (svc != "" && sb.Spec.Service != svc) {
				continue
			}
			seen[sb.GetID()] = true
			number, ok := numbers[sb.Spec.AppVersion]
			if !ok {
				if v, err := entity.Get[app.AppVersion](ctx, s.Store, sb.Spec.AppVersion); err == nil {
					number = v.Spec.Number
				}
				numbers[sb.Spec.AppVersion] = number
			}
			if !q.Follow {
				if err := s.sandboxLogs(ctx, sb, q, number, out); err != nil {
					return err
				}
				continue
			}
			wg.Go(func() {
				if err := s.sandboxLogs(ctx, sb, q, number, out); err != nil && ctx.Err() == nil {
					select {
					case failed <- err:
					default:
					}
				}
			})
		}
		if !q.Follow {
			return nil
		}
		q.Tail = 0 // sandboxes that come later are shown from their beginning
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-failed:
			return err
		case <-tick.C:
		}
	}
}

func (s *sandboxes) sandboxLogs(ctx context.Context, sb *sandbox.Sandbox, q execution.LogQuery, version int64, out *logSender) error {
	err := s.Driver.Logs(ctx, string(sb.ID), q, func(l execution.LogLine) error {
		return out.send(sandbox.LogLine{
			Sandbox: sb.GetID(), Service: sb.Spec.Service, Version: ptr(version), Offset: ptr(l.Offset), At: l.At,
			Stderr: ptr(l.Stream == "stderr"), Text: l.Text,
		})
	})
	if errs.Is(err, errs.NotFound) {
		return nil // it has not printed anything yet, or its logs are gone
	}
	return err
}

// logSender sends lines from several goroutines.
type logSender struct {
	mu sync.Mutex
	st rpc.ServerStream[rpc.None, sandbox.LogBatch]
}

func (o *logSender) send(l sandbox.LogLine) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.st.Send(&sandbox.LogBatch{Lines: []sandbox.LogLine{l}})
}
