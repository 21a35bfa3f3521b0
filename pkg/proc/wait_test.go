package proc

import (
	"context"
	"errors"
	"os/exec"
	"testing"

	"miren.dev/runtime/testsupport/wait"
)

func TestWaitSeesTheEnd(t *testing.T) {
	c := exec.Command("cat")
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	r, err := Identify(c.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	given, ended := make(chan error, 1), make(chan error, 1)
	go func() { given <- r.Wait(ctx) }()
	go func() { ended <- r.Wait(t.Context()) }()
	cancel()
	if err := wait.Receive(t, "the end of the context", given); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	select {
	case err := <-ended:
		t.Fatalf("the process runs: %v", err)
	default:
	}
	in.Close() // nobody reaps it yet: a zombie has ended, too
	if err := wait.Receive(t, "the end of the process", ended); err != nil {
		t.Error(err)
	}
	if err := c.Wait(); err != nil {
		t.Error(err)
	}
	if err := r.Wait(t.Context()); err != nil {
		t.Errorf("of one that is gone: %v", err)
	}
	r.PID = 1 // another process has the number now
	if err := r.Wait(t.Context()); err != nil {
		t.Errorf("of one whose number was given away: %v", err)
	}
}
