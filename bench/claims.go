package main

import (
	"context"
	"fmt"
	"time"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/entity"
)

// claimTemplate is the template whose sandboxes are claimed.
const claimTemplate = "shell"

// reuseGoal is for a request of an agent that has its sandbox already, in milliseconds.
const reuseGoal = 3

// imageTimeout bounds the making of the template's image, which takes minutes the first time.
const imageTimeout = 10 * time.Minute

// benchClaims claims warm sandboxes through a server.
func benchClaims(ctx context.Context, b *bench) error {
	i, err := b.installation(ctx)
	if err != nil {
		return err
	}
	warm := int64(4)
	resp, err := sandbox.NewTemplatesClient(i.client).SetPool(ctx, &sandbox.SetPoolRequest{Template: claimTemplate, Min: &warm, Max: &warm})
	if err != nil {
		return err
	}
	pool, err := entity.Decode[sandbox.WarmPool](&resp.Pool)
	if err != nil {
		return err
	}
	c := sandbox.NewSandboxesClient(i.client)
	request := &sandbox.RunRequest{Template: claimTemplate}
	var claims, firsts latencies
	for k := range b.rounds(20) + 1 {
		if err := i.warm(ctx, pool, warm); err != nil {
			return err
		}
		began := time.Now()
		sb, err := claimed(ctx, c, request)
		if err != nil {
			return err
		}
		claim := time.Since(began)
		if err := execRPC(ctx, c, sb.GetID()); err != nil {
			return err
		}
		if k > 0 { // the first one warms up
			claims, firsts = append(claims, claim), append(firsts, time.Since(began))
		}
		if err := i.remove(ctx, c, sb); err != nil {
			return err
		}
	}
	b.report.figure("claim through RPC, p50", "ms", claims.ms(50), 0)
	b.report.figure("claim to first exec through RPC, p50", "ms", firsts.ms(50), claimExecGoalP50)
	b.report.figure("claim to first exec through RPC, p99", "ms", firsts.ms(99), claimExecGoalP99)

	request.Agent = "bench"
	sb, err := claimed(ctx, c, request)
	if err != nil {
		return err
	}
	took, err := repeat(ctx, 100, func() error {
		again, err := claimed(ctx, c, request)
		if err == nil && again.ID != sb.ID {
			err = fmt.Errorf("the agent got sandbox %s, not %s", again.ID, sb.ID)
		}
		return err
	})
	if err != nil {
		return err
	}
	b.report.figure("an agent gets its sandbox again, p50", "ms", took.ms(50), reuseGoal)
	if err := i.remove(ctx, c, sb); err != nil {
		return err
	}
	_, err = sandbox.NewTemplatesClient(i.client).SetPool(ctx, &sandbox.SetPoolRequest{Template: claimTemplate, Min: new(int64), Max: new(int64)})
	return err
}

// warm waits until so many sandboxes of a pool wait.
func (i *install) warm(ctx context.Context, pool *sandbox.WarmPool, want int64) error {
	ctx, cancel := context.WithTimeout(ctx, imageTimeout)
	defer cancel()
	for {
		p, err := entity.Get[sandbox.WarmPool](ctx, i.store, pool.GetID())
		if err != nil {
			return err
		}
		if p.Status.Warm >= want && p.Status.Starting == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d of %d sandboxes are warm: %s", p.Status.Warm, want, p.Status.Message)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// claimed returns a sandbox of a template that runs.
func claimed(ctx context.Context, c sandbox.SandboxesClient, r *sandbox.RunRequest) (*sandbox.Sandbox, error) {
	run, err := c.Run(ctx, r)
	if err != nil {
		return nil, err
	}
	sb, err := entity.Decode[sandbox.Sandbox](&run.Sandbox)
	if err != nil || sb.Status.Phase == sandbox.SandboxPhaseRunning {
		return sb, err
	}
	w, err := c.Wait(ctx, &sandbox.WaitRequest{Sandbox: sb.GetID(), Until: sandbox.WaitUntilRunning})
	if err != nil {
		return nil, err
	}
	if sb, err = entity.Decode[sandbox.Sandbox](&w.Sandbox); err == nil && sb.Status.Phase != sandbox.SandboxPhaseRunning {
		err = fmt.Errorf("sandbox %s is %s: %s", sb.ID, sb.Status.Phase, sb.Status.Message)
	}
	return sb, err
}
