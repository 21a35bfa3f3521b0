package stack

import "runtime"

// What is built for: the machine that builds.
const (
	arch     = runtime.GOARCH
	platform = "linux/" + arch
)
