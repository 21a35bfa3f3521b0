package runsc_test

import (
	"testing"

	"miren.dev/runtime/components/execution/executiontest"
	"miren.dev/runtime/components/runsc/runsctest"
)

func TestDriver(t *testing.T) {
	executiontest.Run(t, runsctest.New(t).Env())
}
