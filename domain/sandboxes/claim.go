package sandboxes

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"time"

	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/informer"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/fault"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/pkg/trace"
)

const (
	// claimTries bounds the warm sandboxes that one request tries to claim.
	claimTries = 8
	// configureTimeout bounds the call that gives a claimed sandbox to its owner.
	configureTimeout = 2 * time.Second
	// Indexes of the informers.
	indexWarm   = "warm pool"
	indexAgent  = "agent"
	indexPoolOf = "project and template"
)

// addIndexes makes the indexes of the informers that claims use.
func (s *Service) addIndexes() {
	informer.Of[sandbox.Sandbox](s.Informers).AddIndex(indexWarm, func(sb *sandbox.Sandbox) []string {
		if sb.Spec.WarmPool == "" || !Claimable(sb) {
			return nil
		}
		return []string{string(sb.Spec.WarmPool)}
	})
	informer.Of[sandbox.Sandbox](s.Informers).AddIndex(indexAgent, func(sb *sandbox.Sandbox) []string {
		if sb.Spec.Agent == "" {
			return nil
		}
		return []string{agentKey(sb.Project, sb.Spec.Agent)}
	})
	informer.Of[sandbox.WarmPool](s.Informers).AddIndex(indexPoolOf, func(p *sandbox.WarmPool) []string {
		return []string{poolKey(p.Project, p.Spec.Template)}
	})
}

func agentKey(project schema.ID, agent string) string { return string(project) + "/" + agent }

func poolKey(project schema.ID, t id.Template) string { return string(project) + "/" + string(t) }

// Claimable reports whether a sandbox runs, waits in a warm pool and may be
// claimed.
func Claimable(sb *sandbox.Sandbox) bool {
	return sb.Spec.WarmPool != "" && sb.Status.Phase == sandbox.SandboxPhaseRunning && sb.Status.Ready &&
		sb.Spec.Desired == sandbox.DesiredStateRunning
}

// place creates sb, or claims a sandbox in its place: the one that its agent
// has, or a warm one. It returns the sandbox, which a claim has configured.
func (s *Service) place(ctx context.Context, sb *sandbox.Sandbox, t *sandbox.Template) (*sandbox.Sandbox, error) {
	if t != nil {
		if sb.Spec.Agent != "" {
			unlock := s.agents.lock(agentKey(sb.Project, sb.Spec.Agent))
			defer unlock()
			if own := s.ofAgent(sb); own != nil {
				return own, nil
			}
		}
		claimed, err := s.claim(ctx, sb, t)
		if err != nil || claimed != nil {
			return claimed, errors.Join(err, s.known(ctx, claimed))
		}
		sb.Spec.Origin = sandbox.SandboxOriginCold
	}
	if err := entity.Create(ctx, s.Store, sb); err != nil {
		return nil, err
	}
	return sb, s.known(ctx, sb)
}

// known waits until the informer has the sandbox of an agent, so that the
// agent's next request finds it.
func (s *Service) known(ctx context.Context, sb *sandbox.Sandbox) error {
	if sb == nil || sb.Spec.Agent == "" {
		return nil
	}
	_, err := s.Informers.WaitRevision(ctx, sb.Revision)
	return err
}

// ofAgent returns the sandbox of the template that the agent has, or nil.
func (s *Service) ofAgent(sb *sandbox.Sandbox) *sandbox.Sandbox {
	for _, own := range informer.Of[sandbox.Sandbox](s.Informers).ByIndex(indexAgent, agentKey(sb.Project, sb.Spec.Agent)) {
		if own.Spec.TemplateVersion == sb.Spec.TemplateVersion && !own.Status.Phase.Ended() && own.Spec.Desired == sandbox.DesiredStateRunning {
			own = schema.Copy(own)
			own.Spec.Origin = sandbox.SandboxOriginSession
			return own
		}
	}
	return nil
}

// claim takes a warm sandbox for the request that sb describes. It returns nil
// if none can serve it. It leaves those of nodes that this server does not reach:
// no call would give them to their owner.
func (s *Service) claim(ctx context.Context, sb *sandbox.Sandbox, t *sandbox.Template) (got *sandbox.Sandbox, err error) {
	pool := s.poolOf(ctx, sb.Project, t)
	if pool == nil {
		return nil, nil
	}
	ctx, span := trace.Start(ctx, "claim", trace.Internal)
	defer func() {
		if got != nil {
			span.Text("runtime.sandbox", string(got.ID))
		}
		span.End(err)
	}()
	s.Demand.Note(pool.GetID(), time.Now())
	onlyNode, ok, err := s.placeOfVolumes(ctx, sb)
	if err != nil || !ok {
		return nil, err
	}
	unfit, err := s.unfit(ctx, sb)
	if err != nil {
		return nil, err
	}
	tries, limit := 0, claimTries
	if len(sb.Spec.Template.Volumes) > 0 {
		limit = volumesTries
	}
	for _, warm := range informer.Of[sandbox.Sandbox](s.Informers).ByIndex(indexWarm, string(pool.ID)) {
		if onlyNode != "" && warm.Spec.Node != onlyNode || unfit[warm.Spec.Node] || !serves(warm, sb) || s.reach(warm.Spec.Node) != nil || !s.claims.begin(warm.ID) {
			continue
		}
		claimed, err := s.take(ctx, warm, sb)
		s.claims.end(warm.ID, err == nil)
		if err == nil {
			return claimed, nil
		}
		// Another request has it, or it is about to end: the next one serves as well.
		if !errs.Is(err, errs.Conflict) && !errs.Is(err, errs.NotFound) {
			return nil, err
		}
		if tries++; tries == limit {
			break
		}
	}
	return nil, nil
}

// serves reports whether a warm sandbox can be what sb describes.
func serves(warm, sb *sandbox.Sandbox) bool {
	a, b := &warm.Spec.Template, &sb.Spec.Template
	return warm.Spec.TemplateVersion == sb.Spec.TemplateVersion && a.Image == b.Image && len(b.Command) == 0 && b.Idle &&
		a.Network == b.Network && a.Hostname == b.Hostname &&
		b.Resources.CPUMillis <= a.Resources.CPUMillis && b.Resources.MemoryBytes <= a.Resources.MemoryBytes &&
		b.Resources.PIDs <= a.Resources.PIDs && b.Resources.DiskBytes == a.Resources.DiskBytes &&
		b.Resources.DiskFiles == a.Resources.DiskFiles && b.Resources.OpenFiles == a.Resources.OpenFiles &&
		b.Resources.FileBytes == a.Resources.FileBytes && b.Resources.BandwidthBytes == a.Resources.BandwidthBytes
}

// take makes a warm sandbox that of the request: one conditional transaction
// and one call to its node. If the process dies in between, the controller of
// the node makes the call.
func (s *Service) take(ctx context.Context, warm, sb *sandbox.Sandbox) (*sandbox.Sandbox, error) {
	c := schema.Copy(warm)
	now := time.Now()
	c.Name, c.Labels, c.Lease = sb.Name, maps.Clone(sb.Labels), sb.Lease
	c.Spec.WarmPool, c.Spec.Claim, c.Spec.ClaimedAt = "", string(schema.NewID("claim")), &now
	c.Spec.IdleTimeout, c.Spec.OnIdle = sb.Spec.IdleTimeout, sb.Spec.OnIdle
	c.Spec.TTL, c.Spec.ResumeTTL = sb.Spec.TTL, sb.Spec.ResumeTTL
	c.Spec.Agent, c.Spec.Origin = sb.Spec.Agent, sandbox.SandboxOriginPool
	c.Spec.Template, c.Spec.Execution, c.Spec.APIKey = sb.Spec.Template, sb.Spec.Execution, sb.Spec.APIKey
	c.Spec.OnlyNode = sb.Spec.OnlyNode
	fault.Point("claim", "take", fault.Before)
	if err := entity.UpdateSpec(ctx, s.Store, c); err != nil {
		return nil, err
	}
	fault.Point("claim", "take", fault.After)
	identity, err := IdentityOf(c, s.Sealer)
	if err != nil {
		return nil, err
	}
	limit := configureTimeout
	if len(identity.Volumes) > 0 {
		limit = volumesTimeout
	}
	cctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if err := s.Node.Configure(cctx, c.GetID(), identity); err != nil {
		s.discard(ctx, c, err)
		return nil, errs.New(errs.Conflict, "configure the claimed sandbox %s: %w", c.ID, err)
	}
	return c, nil
}

// discard stops a claimed sandbox that cannot be used.
func (s *Service) discard(ctx context.Context, sb *sandbox.Sandbox, cause error) {
	s.Logger.Warn("a claimed sandbox cannot be used", "sandbox", string(sb.ID), "error", cause)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
	defer cancel()
	if err := s.Delete(ctx, sb.GetID()); err != nil && !errs.Is(err, errs.NotFound) {
		s.Logger.Warn("delete a claimed sandbox", "sandbox", string(sb.ID), "error", err)
	}
}

// poolOf returns the warm pool of a template in a project. The first request
// makes it; nil if there is none, or it holds none.
func (s *Service) poolOf(ctx context.Context, project schema.ID, t *sandbox.Template) *sandbox.WarmPool {
	list := informer.Of[sandbox.WarmPool](s.Informers).ByIndex(indexPoolOf, poolKey(project, t.GetID()))
	if len(list) > 0 {
		return usable(list[0])
	}
	if s.NoPools {
		return nil
	}
	p := sandbox.NewWarmPool()
	p.Project, p.Name, p.Spec.Template = project, t.Name, t.GetID()
	err := entity.Create(ctx, s.Store, p)
	if err == nil {
		return p
	}
	if !errs.Is(err, errs.AlreadyExists) { // the informer has it in a moment
		s.Logger.Warn("make a warm pool", "template", t.Name, "error", err)
	}
	return nil
}

func usable(p *sandbox.WarmPool) *sandbox.WarmPool {
	if p.Spec.Max == 0 {
		return nil
	}
	return p
}

// IdentityOf returns what a claimed sandbox is given by its node. A secret
// replaces a variable of the same name.
func IdentityOf(sb *sandbox.Sandbox, sealer *schema.Sealer) (Identity, error) {
	env, err := Environment(&sb.Spec.Template, sealer)
	if err != nil {
		return Identity{}, err
	}
	t := &sb.Spec.Template
	policy, err := Egress(sb)
	if err != nil {
		return Identity{}, err
	}
	return Identity{
		Claim: sb.Spec.Claim, Hostname: cmp.Or(t.Hostname, string(sb.ID)), Env: env, WorkDir: t.Workdir, User: t.User,
		CPUMillis: t.Resources.CPUMillis, MemoryBytes: t.Resources.MemoryBytes, PIDs: t.Resources.PIDs,
		Egress: policy, Volumes: VolumesOf(sb),
	}, nil
}

// Environment returns the variables of a template, NAME=value, in order. A
// secret replaces a variable of the same name.
func Environment(t *sandbox.SandboxTemplate, sealer *schema.Sealer) ([]string, error) {
	all := maps.Clone(t.Env)
	if all == nil {
		all = map[string]string{}
	}
	for k, sec := range t.Secrets {
		v, err := sealer.Open(sec)
		if err != nil {
			return nil, errs.Wrap(err, "secret %s", k)
		}
		all[k] = v
	}
	return pairs(all), nil
}
