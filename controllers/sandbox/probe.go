package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"syscall"
	"time"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/entity"
)

// Prober finds out whether a sandbox serves. It returns nil if it does, and an
// error that says what happened instead.
type Prober func(ctx context.Context, address string, p sandbox.Probe) error

// probe tries once and records the outcome if it is news. It returns when to
// try again.
func (r *Reconciler) probe(ctx context.Context, sb *sandbox.Sandbox) (time.Duration, error) {
	p := *sb.Spec.Template.Probe
	if p.Port == 0 && len(sb.Spec.Template.Ports) > 0 {
		p.Port = sb.Spec.Template.Ports[0].Number
	}
	try := r.Probe
	if try == nil {
		try = network
	}
	attempt, cancel := context.WithTimeout(ctx, p.Timeout)
	err := try(attempt, sb.Status.Address, p)
	cancel()
	if ctx.Err() != nil {
		return 0, ctx.Err()
	}
	now := r.now()
	if err == nil {
		sb.Status.Ready, sb.Status.ReadyAt, sb.Status.Message, sb.Status.Overdue = true, &now, "", false
		r.Log.Info("sandbox is ready", "sandbox", string(sb.ID))
		return r.untilTTL(sb), entity.UpdateStatus(ctx, r.Store, sb)
	}
	age := time.Duration(0)
	if sb.Status.StartedAt != nil {
		age = now.Sub(*sb.Status.StartedAt)
	}
	late := age >= p.Deadline && !sb.Status.Overdue
	if !late && (age < reportEvery || now.Sub(sb.UpdatedAt) < reportEvery) {
		return p.Interval, nil
	}
	changed := late || sb.Status.Message != err.Error()
	sb.Status.Message = err.Error()
	if ports, perr := r.Driver.Listening(ctx, string(sb.ID)); perr == nil {
		listening := make([]int64, len(ports))
		for i, p := range ports {
			listening[i] = int64(p)
		}
		changed = changed || !slices.Equal(listening, sb.Status.Listening)
		sb.Status.Listening = listening
	}
	if late {
		sb.Status.Overdue, sb.Status.LogTail = true, r.tail(ctx, sb)
	}
	if changed {
		if err := entity.UpdateStatus(ctx, r.Store, sb); err != nil {
			return 0, err
		}
	}
	if sb.Status.Overdue {
		return max(p.Interval, reportEvery), nil
	}
	return p.Interval, nil
}

// network is the Prober over the network.
func network(ctx context.Context, address string, p sandbox.Probe) error {
	target := net.JoinHostPort(address, strconv.FormatInt(p.Port, 10))
	if p.Kind != sandbox.ProbeKindHTTP {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", target)
		if err != nil {
			return refused(err, p.Port)
		}
		return conn.Close()
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+target+p.Path, nil)
	if err != nil {
		return fmt.Errorf("health_path %q: %w", p.Path, err)
	}
	req.Header.Set("User-Agent", "runtime-probe")
	resp, err := prober.Do(req)
	if err != nil {
		return refused(err, p.Port)
	}
	defer resp.Body.Close()
	_, _ = io.CopyN(io.Discard, resp.Body, 64<<10) // its content does not matter
	if resp.StatusCode >= 400 {
		return fmt.Errorf("GET %s answered %s", p.Path, resp.Status)
	}
	return nil
}

// prober follows no redirects: one is an answer.
var prober = &http.Client{
	Transport:     &http.Transport{DisableKeepAlives: true},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

// refused says in words why a connection failed.
func refused(err error, port int64) error {
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("nothing listens on port %d", port)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("no answer on port %d in time", port)
	}
	return err
}
