package buildkit

import (
	"context"
	"syscall"
	"testing"
	"time"

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

// TestEndsWhenUnused: a daemon on demand ends some time after its last build, and not before.
func TestEndsWhenUnused(t *testing.T) {
	e := newEnv(t, func(c *Config) { c.OnDemand, c.IdleStop = true, time.Millisecond })
	d := e.buildkit
	running := func() bool {
		t.Helper()
		running, err := d.Running()
		if err != nil {
			t.Fatal(err)
		}
		return running
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	defer func() {
		cancel()
		if err := wait.Receive(t, "Run ends", ended); err != nil {
			t.Error(err)
		}
	}()
	for range 2 {
		release := d.use()
		_, p, err := d.ensure(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := d.stopIdle(t.Context()); err != nil || !running() {
			t.Errorf("it ended while it was used: %v", err)
		}
		release()
		wait.Receive(t, "it ends", p.Done())
		wait.For(t, "nothing of it runs", func() bool { return !running() })
	}
	if _, _, err := e.build(t, e.dockerfile(t, "FROM debian\nRUN true\n")); err != nil {
		t.Error(err)
	}
}
