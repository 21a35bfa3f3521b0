package runsc_test

import (
	"testing"

	"miren.dev/runtime/testsupport/executiontest"
	"miren.dev/runtime/testsupport/runsctest"
)

func TestDriver(t *testing.T) {
	executiontest.Run(t, runsctest.New(t).Env())
}
