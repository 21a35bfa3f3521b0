package sandbox

import (
	"context"
	"sync/atomic"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/components/execution"
)

// process is a process of a sandbox of this node.
type process struct {
	execution.Process
	driver  execution.Driver
	sid     string
	kills   int64 // OOM kills of the sandbox before its start
	counted bool  // kills is known
	oom     atomic.Bool
}

// Wait implements sandboxes.Process.
func (p *process) Wait(ctx context.Context) (int, error) {
	code, err := p.Process.Wait(ctx)
	if err == nil && code == 128+sigkill && p.counted {
		kills, kerr := p.driver.OOMKills(ctx, p.sid)
		p.oom.Store(kerr == nil && kills > p.kills)
	}
	return code, err
}

// Reason implements sandboxes.Process.
func (p *process) Reason() sandbox.EndReason {
	if p.oom.Load() {
		return sandbox.EndReasonOOM
	}
	return ""
}
