package sandbox

// Ended reports whether nothing of a sandbox in this phase runs or will run
// any more.
func (p SandboxPhase) Ended() bool { return p == SandboxPhaseStopped || p == SandboxPhaseFailed }
