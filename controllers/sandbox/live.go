package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strconv"
	"syscall"
	"time"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/entity"
)

// overrun is how much longer than its timeout a check may take. A check that took longer was delayed by this server
// or its machine, so its failure says nothing about the sandbox.
const overrun = 2 * time.Second

// A check that has never passed may be of a process that answers none: it takes at most firstTimeout, and is repeated
// after firstFactor times the interval, since the reconciliations of the sandbox wait for it.
const (
	firstTimeout = 5 * time.Second
	firstFactor  = 3
)

// LiveProber checks once whether a process at an address is alive. Like a Prober, it returns the same text for the
// same cause.
type LiveProber func(ctx context.Context, address string, l sandbox.Liveness) error

// live checks whether the process of a sandbox that was ready is alive, if a check is due, and records that it hangs
// or no longer does. It returns the time until the next check. The pool replaces what hangs.
func (r *Reconciler) live(ctx context.Context, sb *sandbox.Sandbox) (time.Duration, error) {
	l := sb.Spec.Template.Live
	if l == nil || sb.Status.ReadyAt == nil || sb.Status.Address == "" {
		return 0, nil
	}
	sid, now := string(sb.ID), r.now()
	if wait := r.work.untilCheck(sid, now); wait > 0 {
		return wait, nil
	}
	release, ok := r.work.begin(checking)
	if !ok {
		return busyWait, nil
	}
	check, began := r.Live, time.Now()
	if check == nil {
		check = alive
	}
	timeout, next := l.Timeout, l.Interval
	if sb.Status.LiveAt == nil {
		timeout, next = min(timeout, firstTimeout), firstFactor*next
	}
	limited, cancel := context.WithTimeout(ctx, timeout)
	err := check(limited, sb.Status.Address, *l)
	cancel()
	release()
	if ctx.Err() != nil {
		return 0, ctx.Err()
	}
	if err == nil { // the jitter keeps sandboxes that became ready together from being checked together
		next = l.Interval - rand.N(l.Interval/5)
	}
	wait := r.work.checkAfter(sid, now, next)
	wait = max(wait-r.now().Sub(now), time.Millisecond)
	if took := time.Since(began); err != nil && took > timeout+overrun {
		r.Logger.Warn("a liveness check was delayed on this machine and does not count", "sandbox", sid, "took", took, "error", err)
		return wait, nil
	}
	if err == nil {
		return wait, r.lives(ctx, sb)
	}
	return wait, r.dead(ctx, sb, brief(err.Error()))
}

// lives records a liveness check that passed.
func (r *Reconciler) lives(ctx context.Context, sb *sandbox.Sandbox) error {
	sid := string(sb.ID)
	r.work.clearDead(sid)
	if sb.Status.LiveAt != nil && sb.Status.HungAt == nil {
		return nil
	}
	if sb.Status.LiveAt == nil {
		now := r.now()
		sb.Status.LiveAt = &now
	}
	if sb.Status.Ready || sb.Status.HungAt != nil {
		sb.Status.Message = ""
	}
	if sb.Status.HungAt != nil {
		r.Logger.Info("a sandbox that hung answers again", "sandbox", sid)
		sb.Status.HungAt, sb.Status.Ready = nil, !probed(sb)
		r.work.probeAfter(sid, r.now(), 0)
	}
	return entity.UpdateStatus(ctx, r.Store, sb)
}

// dead records a liveness check that failed. A sandbox whose check has never passed does not hang: its process
// may answer no such check.
func (r *Reconciler) dead(ctx context.Context, sb *sandbox.Sandbox, message string) error {
	sid, l := string(sb.ID), sb.Spec.Template.Live
	if sb.Status.HungAt != nil || int64(r.work.addDead(sid)) < l.Failures {
		return nil
	}
	r.work.clearDead(sid)
	if sb.Status.LiveAt == nil {
		message = "its liveness check has never passed, so that it is not replaced if it hangs: " + message
		if !sb.Status.Ready || sb.Status.Message == message {
			return nil
		}
		sb.Status.Message = message
		return entity.UpdateStatus(ctx, r.Store, sb)
	}
	now := r.now()
	sb.Status.Ready, sb.Status.HungAt = false, &now
	sb.Status.Message = fmt.Sprintf("it hangs: %d liveness checks in a row failed: %s", l.Failures, message)
	r.Logger.Warn("sandbox hangs", "sandbox", sid, "checks", l.Failures, "error", message)
	return entity.UpdateStatus(ctx, r.Store, sb)
}

// alive is the LiveProber over the network. With a path it asks as the readiness probe does. Without one it connects and
// ends its own side. The kernel of the sandbox does that much without the process; only the process accepts the
// connection, reads its end, and closes it or sends something. No request reaches the program and its log.
func alive(ctx context.Context, address string, l sandbox.Liveness) error {
	if l.Path != "" {
		return network(ctx, address, sandbox.Probe{Kind: sandbox.ProbeKindHTTP, Port: l.Port, Path: l.Path})
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", net.JoinHostPort(address, strconv.FormatInt(l.Port, 10)))
	if errors.Is(err, syscall.ECONNRESET) {
		return nil // a process accepted and reset it before the dialer looked
	}
	if err != nil {
		return plain(err, l.Port)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil && !errors.Is(err, syscall.ENOTCONN) { // reset already
		return plain(err, l.Port)
	}
	_, err = conn.Read(make([]byte, 1))
	if err == nil || errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) {
		return nil
	}
	if ctx.Err() != nil {
		return fmt.Errorf("port %d takes connections, but no process accepts them", l.Port)
	}
	return plain(err, l.Port)
}
