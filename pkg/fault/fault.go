// Package fault kills the process at named points, so that tests of the built
// binary can see what a crash there leaves behind.
//
// A point is named <area>/<name>/<when>: "setup/network/after". In an ordinary
// build Point is empty and costs nothing. In one with the build tag faultpoints
// (hack/build.sh --faults, bin/runtime-faults) it looks at the file that the
// environment variable RUNTIME_FAULT_FILE names. The file holds one line:
//
//	the name of a point   the process that gets there first renames the file to
//	                      <file>.hit, which disarms it, and kills itself (SIGKILL)
//	trace                 the name of every point that is reached is appended to <file>.seen
//
// Without variable or file nothing happens. A point is safe for concurrent use,
// and must not be reached while a lock is held that the test needs.
package fault

// Env is the variable that names the file.
const Env = "RUNTIME_FAULT_FILE"

// When a point is reached, relative to the effect that it is named after.
const (
	Before = "before"
	After  = "after"
)
