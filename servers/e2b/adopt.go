package e2b

import (
	"cmp"
	"context"
	"crypto/rand"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
)

// The tag of a process in its sandbox says that a client of E2B started it, and
// what a later server needs to know: e2b:START:DEADLINE:TAG. START names the start,
// DEADLINE is in milliseconds of Unix time, in base 36, or empty, and TAG is the
// client's.
const tagPrefix = "e2b:"

// mark is what a tag says.
type mark struct {
	start    string
	deadline time.Time // of its time-out; zero: none
	tag      string
}

// newMark returns the mark of a process that is about to be started.
func newMark(timeout time.Duration, tag string) mark {
	m := mark{start: rand.Text()[:8], tag: tag}
	if timeout > 0 {
		m.deadline = time.Now().Add(timeout)
	}
	return m
}

func (m mark) String() string {
	deadline := ""
	if !m.deadline.IsZero() {
		deadline = strconv.FormatInt(m.deadline.UnixMilli(), 36)
	}
	return tagPrefix + m.start + ":" + deadline + ":" + m.tag
}

// parseMark reads the tag of a process; false if no client of E2B started it.
func parseMark(tag string) (mark, bool) {
	rest, ok := strings.CutPrefix(tag, tagPrefix)
	start, rest, ok2 := strings.Cut(rest, ":")
	deadline, own, ok3 := strings.Cut(rest, ":")
	if !ok || !ok2 || !ok3 {
		return mark{}, false
	}
	m := mark{start: start, tag: own}
	if deadline != "" {
		ms, err := strconv.ParseInt(deadline, 36, 64)
		if err != nil {
			return mark{}, false
		}
		m.deadline = time.UnixMilli(ms)
	}
	return m, true
}

// startKey names a start of a process that is under way.
type startKey struct {
	sandbox id.Sandbox
	start   string
}

// begin records that a process is about to be started, so that it is not adopted.
// The result ends that.
func (t *processes) begin(sid id.Sandbox, m mark) (done func()) {
	key := startKey{sid, m.start}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.starting == nil {
		t.starting = map[startKey]bool{}
	}
	t.starting[key] = true
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.starting, key)
	}
}

// knows reports whether a process is one of these.
func (t *processes) knows(sid id.Sandbox, m mark, i *sandbox.Process) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.live[processKey{sid, i.PID}]
	return t.starting[startKey{sid, m.start}] || p != nil && p.id == i.ID
}

// attach continues a process in a call of its own.
func (s *Server) attach(ctx context.Context, sid id.Sandbox, process string) (execStream, context.CancelFunc, error) {
	base, cancel := context.WithCancel(context.Background()) // see Close
	stop := context.AfterFunc(ctx, cancel)
	stream, err := s.guests.sandboxes.Attach(base, &sandbox.AttachRequest{Sandbox: sid, Process: process})
	if err == nil {
		_, err = begun(stream)
	}
	if err != nil || !stop() {
		cancel()
		return nil, nil, cmp.Or(err, ctx.Err())
	}
	return stream, cancel, nil
}

// adoptTimeout bounds the adoption of the processes of a sandbox.
const adoptTimeout = 10 * time.Second

// adopt continues the processes of a running sandbox that clients started and
// this server does not know: an earlier server has ended, or the sandbox was
// made from another. Its output comes from where no server has read it.
func (s *Server) adopt(sb *sandbox.Sandbox) error {
	sid := sb.GetID()
	_, err, _ := s.adopting.Do(string(sid), func() (any, error) {
		ctx, cancel := context.WithTimeout(s.ctx, adoptTimeout)
		defer cancel()
		resp, err := s.guests.sandboxes.Processes(ctx, &sandbox.SandboxRequest{Sandbox: sid})
		if err != nil {
			return nil, err
		}
		for i := range resp.Processes {
			info := &resp.Processes[i]
			m, ok := parseMark(info.Tag)
			if !ok || len(info.Command) == 0 || s.processes.knows(sid, m, info) {
				continue
			}
			stream, cancel, err := s.attach(ctx, sid, info.ID)
			if errs.Is(err, errs.NotFound) {
				continue // it has ended meanwhile
			}
			if err != nil {
				return nil, err
			}
			p := &process{
				id: info.ID, config: processConfig{Cmd: info.Command[0], Args: info.Command[1:]}, tag: m.tag, tty: info.TTY != nil && *info.TTY,
				stream: stream, cancel: cancel, pauses: sb.Status.Pauses, followers: map[*follower]struct{}{},
			}
			if !m.deadline.IsZero() {
				p.timer = time.AfterFunc(time.Until(m.deadline), p.expire)
			}
			key := processKey{sid, info.PID}
			s.processes.add(key, p)
			s.running.Go(func() { s.follow(key, p, stream, cancel) })
		}
		return nil, nil
	})
	return err
}

// Adoption of the processes of an earlier server: how long it is tried, and of
// how many sandboxes at once. Their agents keep them for a minute.
const (
	adoptAllFor = 2 * time.Minute
	adoptEvery  = time.Second
	adoptAtOnce = 16
)

// adoptAll adopts the processes of all sandboxes that clients of E2B made and
// that run. Agents take a while to connect to this server.
func (s *Server) adoptAll() {
	ctx, cancel := context.WithTimeout(s.ctx, adoptAllFor)
	defer cancel()
	t := time.NewTicker(adoptEvery)
	defer t.Stop()
	var left []*sandbox.Sandbox
	for listed := false; !listed || len(left) > 0; {
		if !listed {
			all, _, err := entity.List[sandbox.Sandbox](ctx, s.guests.store, entity.Where(sandbox.SandboxAttrPhase, sandbox.SandboxPhaseRunning))
			if listed = err == nil; listed {
				for _, sb := range all {
					if sb.Labels[labelTemplate] != "" && stateOf(sb) == stateRunning {
						left = append(left, sb)
					}
				}
			}
		}
		failed := make([]bool, len(left))
		var g errgroup.Group
		g.SetLimit(adoptAtOnce)
		for i, sb := range left {
			g.Go(func() error {
				switch errs.ClassOf(s.adopt(sb)) {
				case "", errs.NotFound, errs.FailedPrecondition: // the latter two: it has ended
				default:
					failed[i] = true
				}
				return nil
			})
		}
		_ = g.Wait() // no function returns an error
		var again []*sandbox.Sandbox
		for i, sb := range left {
			if failed[i] {
				again = append(again, sb)
			}
		}
		left = again
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
	}
}
