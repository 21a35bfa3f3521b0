package app

// Ended reports whether a build in this phase has ended.
func (p BuildPhase) Ended() bool {
	return p == BuildPhaseSucceeded || p == BuildPhaseFailed || p == BuildPhaseCanceled
}

// Ended reports whether a deployment in this phase has ended.
func (p DeploymentPhase) Ended() bool {
	return p == DeploymentPhaseSucceeded || p == DeploymentPhaseFailed || p == DeploymentPhaseCanceled
}

// Cancelable reports whether a deployment in this phase can still be cancelled:
// the new version does not get the traffic yet, or the old one can have it back.
func (p DeploymentPhase) Cancelable() bool {
	return p != DeploymentPhaseShifting && p != DeploymentPhaseDraining && !p.Ended()
}
