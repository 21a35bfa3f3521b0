package runsc_test

import (
	"testing"

	"miren.dev/runtime/testsupport/executiontest"
	"miren.dev/runtime/testsupport/runsctest"
)

func TestDriverConforms(t *testing.T) {
	executiontest.Run(t, runsctest.New(t).Env())
}
