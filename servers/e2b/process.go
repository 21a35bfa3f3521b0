package e2b

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/rpc"
)

const (
	// keepEnd is how long the end of a process can be read after it.
	keepEnd = time.Hour
	// maxEnds bounds the processes of a sandbox of which that is so: the latest ones.
	maxEnds = 128
)

// processes are those that clients started. Each has a call of its own, so it
// goes on when the client that started it is gone, and others may follow it. It is
// not detached, since it would lose output that nobody reads fast enough. If this
// server stops or is killed, its agent keeps it until the next one adopts it.
type processes struct {
	mu       sync.Mutex
	live     map[processKey]*process
	starting map[startKey]bool // starts under way
	ended    map[id.Sandbox][]ended
}

// ended is a process that has ended.
type ended struct {
	key   processKey
	p     *process
	timer *time.Timer // after which it is forgotten
}

type execStream = rpc.ClientStream[sandbox.ExecInput, sandbox.ExecOutput]

type processKey struct {
	sandbox id.Sandbox
	pid     int64
}

type process struct {
	id     string        // in its sandbox
	config processConfig // guarded by mu; empty when it has ended
	tag    string
	tty    bool
	timer  *time.Timer // its time-out; nil: none

	// callMu guards what follows: one sends at a time, and one continues the process.
	callMu sync.Mutex
	stream execStream
	cancel context.CancelFunc
	pauses int64 // of its sandbox before the call, which the next one ends

	mu        sync.Mutex
	followers map[*follower]struct{}
	ended     *processEvent // or
	failed    error         // the reason why its end is not known
	timedOut  bool
}

// follower is a client that gets the events of a process from now on.
type follower struct {
	events chan processEvent
	gone   <-chan struct{} // closed when it reads no more
	over   chan struct{}   // closed when no event follows
	err    error           // then, unless the process has ended
}

type processConfig struct {
	Cmd  string            `json:"cmd"`
	Args []string          `json:"args,omitempty"`
	Envs map[string]string `json:"envs,omitempty"`
	Cwd  string            `json:"cwd,omitempty"`
}

type ptySize struct {
	Size struct {
		Cols int64 `json:"cols"`
		Rows int64 `json:"rows"`
	} `json:"size"`
}

type processEvent struct {
	Start     *processStart `json:"start,omitempty"`
	Data      *processData  `json:"data,omitempty"`
	End       *processEnd   `json:"end,omitempty"`
	Keepalive *struct{}     `json:"keepalive,omitempty"`
}

type processStart struct {
	PID int64 `json:"pid"`
}

type processData struct {
	Stdout []byte `json:"stdout,omitempty"`
	Stderr []byte `json:"stderr,omitempty"`
	PTY    []byte `json:"pty,omitempty"`
}

type processEnd struct {
	ExitCode int64  `json:"exitCode"`
	Exited   bool   `json:"exited"`
	Status   string `json:"status"`
	Error    string `json:"error,omitempty"`
}

type processAnswer struct {
	Event processEvent `json:"event"`
}

// selector names a process.
type selector struct {
	PID *int64  `json:"pid"`
	Tag *string `json:"tag"`
}

type startRequest struct {
	Process processConfig `json:"process"`
	PTY     *ptySize      `json:"pty"`
	Tag     string        `json:"tag"`
	Stdin   *bool         `json:"stdin"` // absent: true
}

// startProcess starts a process and sends its events. When the time of the call is
// over the process is killed, whether its client is still there or not.
func (s *Server) startProcess(ctx context.Context, g *guest, q *startRequest, a *answers) error {
	m := newMark(a.timeout, q.Tag)
	tty := q.PTY != nil
	stdin := tty || q.Stdin == nil || *q.Stdin
	req := &sandbox.ExecRequest{
		Sandbox: g.sb.GetID(), Command: append([]string{q.Process.Cmd}, q.Process.Args...), Env: q.Process.Envs, User: g.user, Tag: m.String(),
		Stdin: &stdin, TTY: &tty,
	}
	if req.Workdir = g.home(); q.Process.Cwd != "" {
		req.Workdir = g.path(q.Process.Cwd)
	}
	if tty {
		req.Rows, req.Cols = &q.PTY.Size.Rows, &q.PTY.Size.Cols
	}
	p := &process{pauses: g.sb.Status.Pauses, config: q.Process, tag: q.Tag, tty: tty, followers: map[*follower]struct{}{}}
	var base context.Context
	base, p.cancel = context.WithCancel(context.Background()) // see Close
	stop := context.AfterFunc(ctx, p.cancel)                  // until it has started
	defer s.processes.begin(g.sb.GetID(), m)()
	var err error
	if p.stream, err = g.sandboxes.Exec(base, req); err != nil {
		p.cancel()
		return err
	}
	begun, err := begun(p.stream)
	if err != nil || !stop() {
		p.cancel()
		return err
	}
	p.id = begun.Process
	var pid int64
	if begun.PID != nil {
		pid = *begun.PID
	}
	if a.timeout > 0 {
		p.timer = time.AfterFunc(a.timeout, p.expire)
	}
	f := p.follow(ctx)
	key := processKey{g.sb.GetID(), pid}
	s.processes.add(key, p)
	s.running.Go(func() { s.follow(key, p, p.stream, p.cancel) })
	return p.report(ctx, pid, f, a)
}

// begun waits until a call has its process.
func begun(stream execStream) (*sandbox.ExecOutput, error) {
	for {
		m, err := stream.Recv()
		if err != nil || m.Started != "" {
			return m, err
		}
	}
}

func (t *processes) add(key processKey, p *process) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.live == nil {
		t.live = map[processKey]*process{}
	}
	t.live[key] = p
}

// find returns a process of a sandbox; NotFound if no client started it.
func (t *processes) find(sid id.Sandbox, by selector) (int64, *process, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for key, p := range t.live {
		if key.sandbox == sid && (by.PID != nil && *by.PID == key.pid || by.PID == nil && by.Tag != nil && *by.Tag == p.tag) {
			return key.pid, p, nil
		}
	}
	return 0, nil, errs.New(errs.NotFound, "the sandbox has no such process")
}

// process returns a process of a sandbox. One whose sandbox was paused meanwhile
// is continued.
func (s *Server) process(ctx context.Context, g *guest, by selector) (int64, *process, error) {
	pid, p, err := s.processes.find(g.sb.GetID(), by)
	if errs.Is(err, errs.NotFound) {
		if err := s.adopt(g.sb); err != nil {
			return 0, nil, err
		}
		pid, p, err = s.processes.find(g.sb.GetID(), by)
	}
	if err != nil {
		return 0, nil, err
	}
	p.callMu.Lock()
	defer p.callMu.Unlock()
	if p.pauses == g.sb.Status.Pauses || !p.runs() {
		return pid, p, nil
	}
	p.cancel() // the process has left its call, which may not know it yet
	p.leave(errGone(publicID(g.sb.ID), "was paused"))
	stream, cancel, err := s.attach(ctx, g.sb.GetID(), p.id)
	if err != nil {
		return 0, nil, err
	}
	p.stream, p.cancel, p.pauses = stream, cancel, g.sb.Status.Pauses
	s.running.Go(func() { s.follow(processKey{g.sb.GetID(), pid}, p, stream, cancel) })
	return pid, p, nil
}

// follow passes the output of a process on until it has ended, or its sandbox is
// paused.
func (s *Server) follow(key processKey, p *process, stream execStream, cancel context.CancelFunc) {
	defer cancel()
	for {
		m, err := stream.Recv()
		if err != nil {
			if s.parted(key.sandbox, p, stream) {
				return
			}
			s.end(key, p, nil, s.explain(s.ctx, key.sandbox, err))
			return
		}
		if m.ExitCode != nil {
			s.end(key, p, &processEvent{End: endOf(*m.ExitCode)}, s.killed(key.sandbox, *m.ExitCode))
			return
		}
		var d processData
		switch {
		case p.tty && len(m.Stdout) > 0:
			d.PTY = m.Stdout
		case len(m.Stdout) > 0:
			d.Stdout = m.Stdout
		case len(m.Stderr) > 0:
			d.Stderr = m.Stderr
		default:
			continue
		}
		p.pass(processEvent{Data: &d})
	}
}

// parted reports whether a pause ended a call, and not the process. Its followers
// are told.
func (s *Server) parted(sid id.Sandbox, p *process, stream execStream) bool {
	sb, err := entity.Get[sandbox.Sandbox](s.ctx, s.guests.store, sid)
	if err != nil || sb.Status.Phase.Ended() {
		return false
	}
	p.callMu.Lock()
	defer p.callMu.Unlock()
	switch {
	case p.stream != stream: // it was continued by another call
		return true
	case p.pauses != sb.Status.Pauses:
		p.leave(errGone(publicID(sid), "was paused"))
		return true
	}
	return false
}

// end records the end of a process, for those who ask later too.
func (s *Server) end(key processKey, p *process, e *processEvent, failed error) {
	if p.timer != nil {
		p.timer.Stop()
	}
	p.mu.Lock()
	p.ended, p.failed, p.config = e, failed, processConfig{}
	p.mu.Unlock()
	p.leave(nil)
	s.processes.end(key, p)
}

// leave ends what the followers get, with an error or with the end of the process.
func (p *process) leave(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for f := range p.followers {
		f.err = err
		close(f.over)
	}
	clear(p.followers)
}

// killed returns the error of a process that a signal ended because its sandbox
// ends; nil otherwise.
func (s *Server) killed(sid id.Sandbox, code int64) error {
	if code <= 128 {
		return nil
	}
	return s.gone(s.ctx, sid)
}

// end keeps a process that has ended for keepEnd, and forgets the one of its sandbox that ended
// first if there are too many.
func (t *processes) end(key processKey, p *process) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended == nil {
		t.ended = map[id.Sandbox][]ended{}
	}
	timer := time.AfterFunc(keepEnd, func() { t.remove(key, p) })
	t.ended[key.sandbox] = append(t.ended[key.sandbox], ended{key, p, timer})
	if all := t.ended[key.sandbox]; len(all) > maxEnds {
		all[0].timer.Stop()
		t.removeLocked(all[0].key, all[0].p)
	}
}

func (t *processes) remove(key processKey, p *process) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.removeLocked(key, p)
}

func (t *processes) removeLocked(key processKey, p *process) {
	if t.live[key] == p {
		delete(t.live, key)
	}
	t.ended[key.sandbox] = slices.DeleteFunc(t.ended[key.sandbox], func(e ended) bool { return e.p == p })
	if len(t.ended[key.sandbox]) == 0 {
		delete(t.ended, key.sandbox)
	}
}

func endOf(code int64) *processEnd {
	e := &processEnd{ExitCode: code, Exited: true, Status: fmt.Sprintf("exit status %d", code)}
	if code != 0 {
		e.Error = e.Status
	}
	return e
}

// follow makes the caller of ctx a follower.
func (p *process) follow(ctx context.Context) *follower {
	f := &follower{events: make(chan processEvent, 16), gone: ctx.Done(), over: make(chan struct{})}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended != nil || p.failed != nil {
		close(f.over)
	} else {
		p.followers[f] = struct{}{}
	}
	return f
}

// pass gives an event to all followers, and waits for slow ones.
func (p *process) pass(e processEvent) {
	p.mu.Lock()
	followers := make([]*follower, 0, len(p.followers))
	for f := range p.followers {
		followers = append(followers, f)
	}
	p.mu.Unlock()
	for _, f := range followers {
		select {
		case f.events <- e:
		case <-f.gone:
			p.mu.Lock()
			delete(p.followers, f)
			p.mu.Unlock()
		}
	}
}

// expire kills a process whose time is over.
func (p *process) expire() {
	p.mu.Lock()
	p.timedOut = true
	p.mu.Unlock()
	sigkill := int64(9)
	_ = p.send(&sandbox.ExecInput{Signal: &sigkill}) // it fails if the process has ended
}

// report sends the events of a process to a follower.
func (p *process) report(ctx context.Context, pid int64, f *follower, a *answers) error {
	send := func(e processEvent) error { return a.send(processAnswer{e}) }
	if err := send(processEvent{Start: &processStart{pid}}); err != nil {
		return err
	}
	var ping <-chan time.Time
	if a.ping > 0 {
		t := time.NewTicker(a.ping)
		defer t.Stop()
		ping = t.C
	}
	var expired <-chan time.Time
	if a.timeout > 0 {
		t := time.NewTimer(a.timeout)
		defer t.Stop()
		expired = t.C
	}
	for over := false; !over; {
		var err error
		select {
		case e := <-f.events:
			err = send(e)
		case <-f.over:
			over = true
		case <-ping:
			err = send(processEvent{Keepalive: &struct{}{}})
		case <-expired:
			return errTime
		case <-ctx.Done():
			return ctx.Err()
		}
		if err != nil {
			return err
		}
	}
	for len(f.events) > 0 {
		if err := send(<-f.events); err != nil {
			return err
		}
	}
	if f.err != nil {
		return f.err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.timedOut:
		return errTime
	case p.failed != nil:
		return p.failed
	}
	return send(*p.ended)
}

var errTime = errs.New(errs.DeadlineExceeded, "the time of the command is over")

func (p *process) send(m *sandbox.ExecInput) error {
	p.callMu.Lock()
	defer p.callMu.Unlock()
	return p.stream.Send(m)
}

// connectProcess sends the events of a process that runs from now on, or its end.
func (s *Server) connectProcess(ctx context.Context, g *guest, q *struct {
	Process selector `json:"process"`
}, a *answers) error {
	pid, p, err := s.process(ctx, g, q.Process)
	if err != nil {
		return err
	}
	return p.report(ctx, pid, p.follow(ctx), a)
}

// processInfo describes a process in a list.
type processInfo struct {
	PID    int64         `json:"pid"`
	Tag    string        `json:"tag,omitempty"`
	Config processConfig `json:"config"`
}

func (s *Server) listProcesses(_ context.Context, g *guest, _ *struct{}) (any, error) {
	if err := s.adopt(g.sb); err != nil {
		return nil, err
	}
	list := []processInfo{}
	s.processes.mu.Lock()
	defer s.processes.mu.Unlock()
	for key, p := range s.processes.live {
		if config, runs := p.state(); runs && key.sandbox == g.sb.GetID() {
			list = append(list, processInfo{key.pid, p.tag, config})
		}
	}
	return map[string]any{"processes": list}, nil
}

func (p *process) runs() bool {
	_, runs := p.state()
	return runs
}

// state returns how a process was started, and whether it runs.
func (p *process) state() (_ processConfig, runs bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.config, p.ended == nil && p.failed == nil
}

// input sends something to a process that runs.
func (s *Server) input(ctx context.Context, g *guest, by selector, m *sandbox.ExecInput) (any, error) {
	_, p, err := s.process(ctx, g, by)
	if err != nil {
		return nil, err
	}
	if !p.runs() {
		return nil, errs.New(errs.NotFound, "the process has ended")
	}
	return struct{}{}, p.send(m)
}

func (s *Server) sendInput(ctx context.Context, g *guest, q *struct {
	Process selector `json:"process"`
	Input   struct {
		Stdin []byte `json:"stdin"`
		PTY   []byte `json:"pty"`
	} `json:"input"`
}) (any, error) {
	return s.input(ctx, g, q.Process, &sandbox.ExecInput{Stdin: append(q.Input.Stdin, q.Input.PTY...)})
}

func (s *Server) closeStdin(ctx context.Context, g *guest, q *struct {
	Process selector `json:"process"`
}) (any, error) {
	yes := true
	return s.input(ctx, g, q.Process, &sandbox.ExecInput{CloseStdin: &yes})
}

var signals = map[string]int64{"SIGNAL_SIGTERM": 15, "SIGNAL_SIGKILL": 9}

func (s *Server) sendSignal(ctx context.Context, g *guest, q *struct {
	Process selector `json:"process"`
	Signal  string   `json:"signal"`
}) (any, error) {
	n, ok := signals[q.Signal]
	if !ok {
		return nil, errs.New(errs.InvalidArgument, "signal %q is neither SIGNAL_SIGTERM nor SIGNAL_SIGKILL", q.Signal)
	}
	return s.input(ctx, g, q.Process, &sandbox.ExecInput{Signal: &n})
}

func (s *Server) updateProcess(ctx context.Context, g *guest, q *struct {
	Process selector `json:"process"`
	PTY     *ptySize `json:"pty"`
}) (any, error) {
	if q.PTY == nil {
		return struct{}{}, nil
	}
	return s.input(ctx, g, q.Process, &sandbox.ExecInput{Resize: &sandbox.TerminalSize{Rows: q.PTY.Size.Rows, Cols: q.PTY.Size.Cols}})
}
