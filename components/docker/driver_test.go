package docker_test

import (
	"testing"

	"miren.dev/runtime/testsupport/dockertest"
	"miren.dev/runtime/testsupport/executiontest"
)

func TestMain(m *testing.M) { dockertest.Main(m) }

func TestDriverConforms(t *testing.T) {
	executiontest.Run(t, dockertest.New(t, dockertest.Runsc).Env())
}
