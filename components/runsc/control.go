package runsc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/pkg/agentproto"
	"miren.dev/runtime/pkg/errs"
)

// sentryCall calls a method of the sentry's control server, passes it files, and decodes its result unless that is nil.
// `runsc checkpoint` would do no more, and take the time of a start of runsc. The protocol is that of the pinned runsc: one
// JSON object per request and answer, the files beside its first byte.
func sentryCall(ctx context.Context, socket, method string, arg, result any, files ...*os.File) error {
	conn, err := dialSentry(ctx, socket)
	if err != nil {
		return err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })
	defer stop()
	request, err := json.Marshal(struct {
		Method string `json:"method"`
		Arg    any    `json:"arg"`
	}{method, arg})
	if err != nil {
		return errs.New(errs.Internal, "encode %s: %w", method, err)
	}
	var fds []int
	for _, f := range files {
		fds = append(fds, int(f.Fd()))
	}
	if n, _, err := conn.WriteMsgUnix(request, unix.UnixRights(fds...), nil); err != nil || n < len(request) {
		return errs.New(errs.Unavailable, "%s: wrote %d of %d bytes: %w", method, n, len(request), err)
	}
	var answer struct {
		Success bool   `json:"success"`
		Err     string `json:"err"`
		Result  any    `json:"result"`
	}
	answer.Result = result
	if err := json.NewDecoder(conn).Decode(&answer); err != nil {
		if ctx.Err() != nil {
			return errs.New(errs.DeadlineExceeded, "%s: the sandbox's kernel does not answer: %w", method, ctx.Err())
		}
		return errs.New(errs.Unavailable, "%s: the sandbox's kernel has ended: %w", method, err)
	}
	if !answer.Success {
		return &sentryError{method: method, message: answer.Err}
	}
	return nil
}

// sentryError is a failure that the sentry reports. It carries no class.
type sentryError struct{ method, message string }

func (e *sentryError) Error() string { return e.method + ": " + e.message }

// dialSentry connects to a socket whose path may be longer than an address can be.
func dialSentry(ctx context.Context, socket string) (*net.UnixConn, error) {
	dir, err := unix.Open(filepath.Dir(socket), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, errs.New(errs.Unavailable, "control socket: %w", err)
	}
	defer unix.Close(dir)
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d/%s", dir, filepath.Base(socket)))
	if err != nil {
		return nil, errs.New(errs.Unavailable, "control socket of the sandbox's kernel: %w", err)
	}
	return conn.(*net.UnixConn), nil
}

// Files of the image of a snapshot, as runsc names them.
var imageFiles = []string{"checkpoint.img", "pages_meta.img", "pages.img"}

// saveOptions are the sentry's options of a snapshot.
type saveOptions struct {
	Metadata      map[string]string `json:"metadata"`
	HavePagesFile bool              `json:"have_pages_file"`
	// Resume lets the sandbox go on. Without it the sentry ends even if it could not write the image.
	Resume bool
}

// save has a sentry write the image of its sandbox to a new directory. The sandbox keeps running, also after an error.
func save(ctx context.Context, socket, dir string) error {
	var files []*os.File
	defer func() {
		for _, f := range files {
			f.Close()
		}
	}()
	for _, name := range imageFiles {
		f, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
		if err != nil {
			return errs.New(errs.Unavailable, "create image: %w", err)
		}
		files = append(files, f)
	}
	o := saveOptions{
		Metadata:      map[string]string{"compression": "none"}, // pages in a file of their own can be read by many at once
		HavePagesFile: true,
		Resume:        true,
	}
	err := sentryCall(ctx, socket, "containerManager.Checkpoint", o, nil, files...)
	if err != nil {
		// After a failure this sentry leaves one of the files open: deleting it would not free its space.
		for _, f := range files {
			err = errors.Join(err, f.Truncate(0))
		}
	}
	return err
}

// setHostname has a sentry run the agent once more, as a process that may do nothing but set the host name. Neither the
// agent nor another process of the sandbox has that capability after a claim.
func setHostname(ctx context.Context, socket, container, name string) error {
	const admin = 1 << unix.CAP_SYS_ADMIN
	type capabilities struct{ PermittedCaps, InheritableCaps, EffectiveCaps, BoundingCaps, AmbientCaps uint64 }
	args := struct {
		Filename         string   `json:"filename"`
		Argv             []string `json:"argv"`
		Envv             []string `json:"envv"`
		WorkingDirectory string   `json:"wd"`
		KUID, KGID       uint32
		NoNewPrivileges  bool
		Capabilities     capabilities
		ContainerID      string
	}{
		Filename: agentproto.GuestBinary, Argv: []string{agentproto.GuestBinary, agentproto.HostnameFlag, name}, Envv: []string{}, WorkingDirectory: "/",
		KUID: agentproto.VaultUID, KGID: agentproto.VaultUID, NoNewPrivileges: true, Capabilities: capabilities{admin, admin, admin, admin, admin}, ContainerID: container,
	}
	wait := struct {
		PID int32
		CID string
	}{CID: container}
	if err := sentryCall(ctx, socket, "containerManager.ExecuteAsync", args, &wait.PID); err != nil {
		return err
	}
	var status uint32
	if err := sentryCall(ctx, socket, "containerManager.WaitPID", wait, &status); err != nil {
		return err
	}
	if status != 0 {
		return errs.New(errs.Internal, "set the host name of the restored sandbox: exit status %d", status>>8)
	}
	return nil
}
