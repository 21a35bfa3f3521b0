package rpcserver_test

import "testing"

// TestThroughARunner repeats tests of what a node does with a runner in its place:
// the calls go to it, and come back, by RPC. newEnv knows it by its name.
func TestThroughARunner(t *testing.T) {
	for name, test := range map[string]func(*testing.T){
		"Attach": TestAttach, "Dial": TestDial, "Claim": TestClaimTakesAWarmSandbox, "PassesOver": claimPassesOverRunners, "Exec": TestExec, "ExecRefused": TestExecRefused,
		"Files": TestFiles, "RunCode": TestRunCodeWritesItsFiles, "Logs": TestLogs, "Follow": TestFollowBeforeItBegins,
		"Outputs": TestRunOnceSendsOutputs, "RunOnce": TestRunOnce, "EndsWithItsCaller": TestRunOnceEndsWithItsCaller,
		"SaysWhyItEnded": TestRunOnceSaysWhyItEnded, "NetworkPolicy": TestNetworkPolicy, "Life": TestSandboxLife,
		"Pause": TestPauseAndResume, "Signal": TestSignalOvertakesInput,
	} {
		t.Run(name, test)
	}
}
