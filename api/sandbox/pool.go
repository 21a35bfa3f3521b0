package sandbox

// Wanted returns how many sandboxes the pool has by its spec: replicas, or with autoscale what the load wants within the
// bounds. Replicas stays the most that it may have, since a rollout lowers it for a while. It does not regard the state.
func (p *SandboxPool) Wanted() int64 {
	a := p.Spec.Autoscale
	if a == nil {
		return p.Spec.Replicas
	}
	n := int64(1) // a new version proves that it starts
	if p.Spec.Autoscaled != nil {
		n = *p.Spec.Autoscaled
	}
	return min(max(n, a.Min), a.Max, p.Spec.Replicas)
}
