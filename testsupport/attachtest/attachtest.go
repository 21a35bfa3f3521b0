// Package attachtest helps tests of attached disks: the check that the
// machine can attach disks, a holder, and the end of block devices.
package attachtest

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/lsvd/frontend/holder"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/instance"
	"miren.dev/runtime/pkg/proc"
	"miren.dev/runtime/testsupport/need"
	"miren.dev/runtime/testsupport/wait"
)

// Need is for tests that attach disks and run the named programs.
func Need(t testing.TB, tools ...string) {
	t.Helper()
	need.Root(t)
	if err := Missing(); err != nil {
		need.Missing(t, err)
	}
	need.Tools(t, tools...)
}

// Missing returns why this machine cannot attach disks, nil if it can.
func Missing() error {
	for _, device := range []string{"/dev/loop-control", "/dev/fuse"} {
		f, err := os.OpenFile(device, os.O_RDWR, 0)
		if err != nil {
			return err
		}
		f.Close()
	}
	return nil
}

// Executable returns the path of the test binary.
func Executable(t testing.TB) string {
	t.Helper()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// Holder starts the test binary as the holder whose socket is in dir, with
// variables of the form NAME=value. At the end of the test it drops every
// connection and stops the holder.
func Holder(t *testing.T, dir string, env ...string) *holder.Client {
	t.Helper()
	for _, e := range env {
		name, value, _ := strings.Cut(e, "=")
		t.Setenv(name, value)
	}
	client, err := holder.Start(t.Context(), holder.Spec{Path: Executable(t), Dir: dir})
	for _, e := range env {
		name, _, _ := strings.Cut(e, "=")
		os.Unsetenv(name)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		entries, err := client.List(ctx)
		for _, e := range entries {
			if drop := client.Drop(ctx, e.Name); drop != nil && !errs.Is(drop, errs.NotFound) {
				err = errors.Join(err, drop)
			}
		}
		if err = errors.Join(err, client.Stop(ctx)); err != nil {
			t.Error(err)
		}
		<-client.Done()
	})
	return client
}

// EndDevices kills disk daemon and holder of an instance at once, with which all its block devices end.
func EndDevices(t testing.TB, in *instance.Instance) {
	t.Helper()
	var both []*proc.Process
	for _, name := range []string{"holder.json", "daemon.json"} {
		p, err := proc.Find(in.Socket("lsvd", name))
		if err != nil || p == nil {
			t.Fatalf("%s: %v, %v", name, p, err)
		}
		both = append(both, p)
	}
	for _, p := range both {
		if err := unix.Kill(p.PID(), unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range both {
		wait.Receive(t, "the end of a process that serves disks", p.Done())
	}
}
