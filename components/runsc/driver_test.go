package runsc_test

import (
	"testing"

	"miren.dev/runtime/components/runsc"
	"miren.dev/runtime/testsupport/executiontest"
	"miren.dev/runtime/testsupport/runsctest"
)

func TestDriverConforms(t *testing.T) {
	eachBackend(t, func(t *testing.T, m machine) { executiontest.Run(t, m.Env()) })
}

// eachBackend runs a test with sandboxes of each backend.
func eachBackend(t *testing.T, test func(t *testing.T, m machine)) {
	for _, name := range []string{runsc.BackendDirect, runsc.BackendContainerd} {
		t.Run(name, func(t *testing.T) { test(t, machine{runsctest.NewWith(t, name)}) })
	}
}
