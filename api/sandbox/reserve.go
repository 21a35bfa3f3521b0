package sandbox

// Reserved returns what the sandbox reserves on its node: CPU in thousandths, and
// memory in bytes with what the host needs beside the limit.
func (s *Sandbox) Reserved() (cpuMillis, memoryBytes int64) {
	r := s.Spec.Template.Resources
	return r.CPUMillis, r.MemoryBytes + OverheadBytes
}
