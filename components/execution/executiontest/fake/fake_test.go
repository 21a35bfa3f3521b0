package fake_test

import (
	"testing"

	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/components/execution/executiontest"
	"miren.dev/runtime/components/execution/executiontest/fake"
)

func TestDriver(t *testing.T) {
	m := fake.NewMachine()
	executiontest.Run(t, &executiontest.Env{
		Driver: m.Driver(), Image: "guest",
		Renew: func(testing.TB) execution.Driver { return m.Driver() },
	})
}
