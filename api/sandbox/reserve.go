package sandbox

// Reserved returns the resources that the sandbox reserves on its node: CPU in
// thousandths, and memory in bytes, with the host's overhead on top of the
// limit.
func (s *Sandbox) Reserved() (cpuMillis, memoryBytes int64) {
	r := s.Spec.Template.Resources
	return r.CPUMillis, r.MemoryBytes + OverheadBytes
}
