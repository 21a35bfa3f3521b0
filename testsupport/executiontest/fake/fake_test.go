package fake_test

import (
	"testing"

	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/testsupport/executiontest"
	"miren.dev/runtime/testsupport/executiontest/fake"
)

func TestDriver(t *testing.T) {
	m := fake.NewMachineIn(t.TempDir())
	executiontest.Run(t, &executiontest.Env{
		Driver: m.Driver(), Image: "guest",
		Renew: func(testing.TB) execution.Driver { return m.Driver() },
	})
}
