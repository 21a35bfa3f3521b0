package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/pkg/agentproto"
)

// relayLook is how often a relay looks for more of the log if it is told of none, in
// milliseconds.
const relayLook = 2000

// readyLook is how often a relay looks whether the agent waits for it.
const readyLook = 5 * time.Millisecond

// podRelay connects the agent of this pod with the node, as
// agentproto.PodFlag says, until either is gone.
func podRelay(offset string) error {
	at, err := strconv.ParseInt(offset, 10, 64)
	if err != nil || at < 0 {
		return unix.EINVAL
	}
	out := &podWriter{w: os.Stderr}
	if err := relay(at, out); err != nil {
		_ = out.send(agentproto.PodFrame{Type: agentproto.PodError, Payload: []byte(err.Error())})
	}
	return nil
}

func relay(at int64, out *podWriter) error {
	f, err := agentproto.ReadPodFrame(os.Stdin, agentproto.MaxConfig)
	if err != nil || f.Type != agentproto.PodConfig {
		return fmt.Errorf("read the configuration: %w", errors.Join(err, agentproto.ErrMalformed))
	}
	listener, err := listenUnix(filepath.Join(agentproto.GuestDir, agentproto.SocketName))
	if err != nil {
		return fmt.Errorf("listen for the agent: %w", err)
	}
	if err := deliver(f.Payload); err != nil {
		return fmt.Errorf("deliver the configuration: %w", err)
	}
	var told atomic.Bool // the node has been sent the exit record
	ended := make(chan error, 3)
	go func() { ended <- shipLog(at, out, &told) }()
	conn, err := acceptAgent(listener)
	if err != nil {
		return fmt.Errorf("wait for the agent: %w", err)
	}
	go func() {
		_, err := io.Copy(conn, os.Stdin)
		if told.Load() {
			err = os.WriteFile(filepath.Join(agentproto.GuestLog, agentproto.ShippedName), nil, 0o600)
		}
		ended <- err
	}()
	go func() {
		_, err := io.Copy(os.Stdout, conn)
		if told.Load() || hasExit() {
			return // the log and its acknowledgement are still under way
		}
		ended <- err
	}()
	for {
		if err := <-ended; err != errShipped {
			return err
		}
	}
}

var errShipped = errors.New("the whole log was sent")

// deliver writes the configuration and wakes the agent that waits for it. It does not use atomicfile: the file is in memory.
func deliver(config []byte) error {
	path := filepath.Join(agentproto.GuestDir, agentproto.ConfigName)
	if err := os.WriteFile(path+".new", config, 0o600); err != nil {
		return err
	}
	if err := os.Rename(path+".new", path); err != nil {
		return err
	}
	ready := filepath.Join(agentproto.GuestDir, agentproto.ReadyName)
	for {
		fd, err := unix.Open(ready, unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		switch {
		case err == nil:
			unix.Close(fd)
			return os.Remove(ready) // the agent has opened it, and no other process does
		case err == unix.ENOENT:
			return nil // the agent was started by an earlier relay
		case err != unix.ENXIO && err != unix.EINTR:
			return &os.PathError{Op: "open", Path: ready, Err: err}
		}
		time.Sleep(readyLook) // the agent is about to open it
	}
}

// listenUnix listens on a path, in place of an earlier relay.
func listenUnix(path string) (int, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	_ = unix.Unlink(path) // of an earlier one
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		return -1, err
	}
	return fd, unix.Listen(fd, 1)
}

// acceptAgent accepts one connection. Only the agent can enter the directory of the
// socket.
func acceptAgent(listener int) (*os.File, error) {
	defer unix.Close(listener)
	for {
		fd, _, err := unix.Accept4(listener, unix.SOCK_CLOEXEC)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return nil, err
		}
		_ = unix.SetNonblock(fd, true) // cannot fail on a socket
		return os.NewFile(uintptr(fd), "agent"), nil
	}
}

// podWriter sends frames.
type podWriter struct {
	w   io.Writer
	buf []byte
}

func (w *podWriter) send(f agentproto.PodFrame) error {
	w.buf = f.Append(w.buf[:0])
	_, err := w.w.Write(w.buf)
	return err
}

func hasExit() bool {
	_, err := os.Lstat(filepath.Join(agentproto.GuestLog, agentproto.ExitName))
	return err == nil
}

// shipLog sends the log from an offset on, and the exit record after it.
func shipLog(at int64, out *podWriter, told *atomic.Bool) error {
	begun := int64(-1) // the segment that was announced
	changes, err := unix.InotifyInit1(unix.IN_CLOEXEC)
	if err != nil {
		return err
	}
	defer unix.Close(changes)
	if _, err := unix.InotifyAddWatch(changes, agentproto.GuestLog, unix.IN_CREATE|unix.IN_MODIFY|unix.IN_MOVED_TO); err != nil {
		return err
	}
	events := make([]byte, 4096)
	for {
		ended := hasExit() // before reading, so that nothing is missed
		for {
			more, err := shipSome(&at, &begun, out)
			if err != nil {
				return err
			}
			if !more {
				break
			}
		}
		if ended {
			b, err := readFile(filepath.Join(agentproto.GuestLog, agentproto.ExitName), agentproto.MaxExitFile)
			if err != nil {
				return err
			}
			told.Store(true)
			if err := out.send(agentproto.PodFrame{Type: agentproto.PodExit, Offset: at, Payload: b}); err != nil {
				return err
			}
			return errShipped
		}
		poll := []unix.PollFd{{Fd: int32(changes), Events: unix.POLLIN}}
		n, err := unix.Poll(poll, relayLook)
		if err != nil && err != unix.EINTR {
			return err
		}
		if n > 0 {
			if _, err := readFD(changes, events); err != nil {
				return err
			}
		}
	}
}

// shipSome sends one frame of the log, if there is more.
func shipSome(at, begun *int64, out *podWriter) (bool, error) {
	entries, err := os.ReadDir(agentproto.GuestLog)
	if err != nil {
		return false, err
	}
	var starts []int64
	for _, e := range entries {
		if start, ok := agentproto.ParseSegmentName(e.Name()); ok {
			starts = append(starts, start)
		}
	}
	slices.Sort(starts)
	i, exact := slices.BinarySearch(starts, *at)
	if !exact && i > 0 {
		i--
	}
	for ; i < len(starts); i++ {
		start := starts[i]
		*at = max(*at, start) // what was between is gone
		path := filepath.Join(agentproto.GuestLog, agentproto.SegmentName(start))
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err == unix.ENOENT {
			continue
		}
		if err != nil {
			return false, &os.PathError{Op: "open", Path: path, Err: err}
		}
		buf := make([]byte, agentproto.MaxPodFrame)
		n, err := unix.Pread(fd, buf, *at-start)
		unix.Close(fd)
		if err != nil && err != unix.EINTR {
			return false, &os.PathError{Op: "read", Path: path, Err: err}
		}
		if n <= 0 {
			continue
		}
		if *begun != start {
			*begun = start
			if err := out.send(agentproto.PodFrame{Type: agentproto.PodSegment, Offset: start}); err != nil {
				return false, err
			}
		}
		err = out.send(agentproto.PodFrame{Type: agentproto.PodLog, Offset: *at, Payload: buf[:n]})
		*at += int64(n)
		return true, err
	}
	return false, nil
}
