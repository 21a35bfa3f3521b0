package buildkit

import (
	"context"
	"syscall"
	"testing"

	"miren.dev/runtime/testsupport/wait"
)

// TestOnDemand: the daemon is started when it is needed, and kept from then on.
func TestOnDemand(t *testing.T) {
	e := newEnv(t, func(c *Config) { c.OnDemand = true })
	running := func() bool {
		t.Helper()
		running, err := e.buildkit.Running()
		if err != nil {
			t.Fatal(err)
		}
		return running
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- e.buildkit.Run(ctx) }()
	defer func() {
		cancel()
		if err := wait.Receive(t, "Run ends", ended); err != nil {
			t.Error(err)
		}
	}()
	if running() {
		t.Error("it runs before it is needed")
	}
	_, p, err := e.buildkit.ensure(t.Context()) // as a build does
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(p.PID(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	wait.Receive(t, "it has ended", p.Done())
	wait.For(t, "it runs again", running)
	// Another server adopts it.
	other := New(e.buildkit.cfg)
	if err := other.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	select {
	case <-other.begun:
	default:
		t.Error("it was not adopted")
	}
	if err := other.Close(); err != nil {
		t.Error(err)
	}
}
