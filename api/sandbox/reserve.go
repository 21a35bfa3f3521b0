package sandbox

import "miren.dev/runtime/api/id"

// Reserved returns the resources that the sandbox reserves on its node: CPU in
// thousandths, and memory in bytes, with the host's overhead on top of the
// limit. A sandbox that is paused and not wanted reserves nothing.
func (s *Sandbox) Reserved() (cpuMillis, memoryBytes int64) {
	if s.Status.Phase == SandboxPhasePaused && s.Spec.Desired == DesiredStatePaused {
		return 0, 0
	}
	r := s.Spec.Template.Resources
	return r.CPUMillis, r.MemoryBytes + OverheadBytes
}

// Reservation is what sandboxes reserve on a node.
type Reservation struct{ Sandboxes, CPUMillis, MemoryBytes int64 }

// ReservedByNode returns what sandboxes reserve on each node; those that have ended reserve
// nothing.
func ReservedByNode(all []*Sandbox) map[id.Node]Reservation {
	by := map[id.Node]Reservation{}
	for _, s := range all {
		if s.Spec.Node == "" || s.Status.Phase.Ended() {
			continue
		}
		r := by[s.Spec.Node]
		cpu, memory := s.Reserved()
		by[s.Spec.Node] = Reservation{r.Sandboxes + 1, r.CPUMillis + cpu, r.MemoryBytes + memory}
	}
	return by
}
