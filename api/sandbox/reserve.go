package sandbox

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
