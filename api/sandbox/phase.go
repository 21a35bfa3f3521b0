package sandbox

// Ended reports whether a sandbox in this phase has ended: no process of it
// runs or will run.
func (p SandboxPhase) Ended() bool { return p == SandboxPhaseStopped || p == SandboxPhaseFailed }
