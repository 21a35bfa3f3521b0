package agent

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/pkg/agentproto"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/trace"
)

// resumeWithin is how long a channel waits for its agent to come back.
const resumeWithin = 30 * time.Second

// Conn is the connection to the agent of one sandbox. It outlives single
// network connections: while the agent is away calls fail with Unavailable, and
// channels continue when it is back.
type Conn struct {
	hub   *Hub
	id    string
	token string
	ln    *net.UnixListener

	refused rate.Sometimes // bounds the messages about handshakes

	mu         sync.Mutex
	connection *connection
	change     chan struct{} // closed and renewed when connection changes
	boot       uint64        // boot number of the last connection
	main       MainStatus
	exited     chan struct{} // closed when main has ended
	channels   map[uint64]*channel
	giveUp     *time.Timer // fails the channels when the agent stays away
	suspended  bool        // the agent stays away for a snapshot
	ended      bool
}

func newConn(h *Hub, id, token string) *Conn {
	return &Conn{
		hub: h, id: id, token: token, refused: rate.Sometimes{First: 3, Interval: time.Minute}, change: make(chan struct{}), main: MainStatus{State: MainPending},
		exited: make(chan struct{}), channels: map[uint64]*channel{},
	}
}

// accept serves the agent's connections until end.
func (c *Conn) accept() {
	var tasks sync.WaitGroup
	defer tasks.Wait()
	slots := make(chan struct{}, maxHandshakes)
	for {
		nc, err := c.ln.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			c.hub.c.Logger.Error("accept agent", "sandbox", c.id, "error", err)
			select {
			case <-time.After(100 * time.Millisecond): // descriptors may be exhausted
				continue
			case <-c.hub.stop:
				return
			}
		}
		select {
		case slots <- struct{}{}:
		default:
			nc.Close()
			continue
		}
		tasks.Go(func() {
			defer nc.Close()
			s, m, err := greet(c, nc)
			<-slots
			if err != nil {
				if !errors.Is(err, io.EOF) {
					c.refused.Do(func() { c.hub.c.Logger.Warn("agent handshake", "sandbox", c.id, "error", err) })
				}
				return
			}
			if !c.install(s, m) {
				s.close()
				return
			}
			err = s.serve()
			c.uninstall(s, err)
		})
	}
}

// install makes s the connection in use; it replaces an older one.
func (c *Conn) install(s *connection, m agentproto.Main) bool {
	c.mu.Lock()
	if c.ended {
		c.mu.Unlock()
		return false
	}
	old := c.connection
	c.connection = s
	if c.giveUp != nil {
		c.giveUp.Stop()
		c.giveUp = nil
	}
	again := c.boot == s.boot
	c.boot = s.boot
	channels := make([]*channel, 0, len(c.channels))
	for _, ch := range c.channels {
		channels = append(channels, ch)
	}
	c.takeMain(m)
	close(c.change)
	c.change = make(chan struct{})
	c.mu.Unlock()
	if old != nil {
		old.close()
	}
	for _, ch := range channels {
		switch {
		case ch.life == agentproto.LifeOnce: // the agent has ended it
			c.forget(ch)
			ch.fail(errs.New(errs.Unavailable, "the agent of %s was lost; it is not known whether it did the work", c.id))
		case again:
			ch.resume(s)
		default:
			ch.fail(errs.New(errs.Unavailable, "the agent of %s was started anew", c.id))
		}
	}
	c.hub.c.Logger.Debug("agent connected", "sandbox", c.id)
	c.hub.c.Notify(c.id)
	return true
}

func (c *Conn) uninstall(s *connection, err error) {
	c.mu.Lock()
	current, final := c.connection == s, c.main.State == MainExited
	if current {
		c.connection = nil
		close(c.change)
		c.change = make(chan struct{})
		if !c.ended && !c.suspended && c.main.State != MainExited {
			c.giveUp = time.AfterFunc(resumeWithin, c.abandon)
		}
	}
	c.mu.Unlock()
	if current && final {
		c.abandon()
	}
	if current {
		c.hub.c.Logger.Debug("agent lost", "sandbox", c.id, "error", err)
		c.hub.c.Notify(c.id)
	}
}

// abandon fails all channels.
func (c *Conn) abandon() {
	c.mu.Lock()
	channels := c.channels
	c.channels = map[uint64]*channel{}
	c.mu.Unlock()
	for _, ch := range channels {
		ch.fail(errs.New(errs.Unavailable, "sandbox %s has ended, or its agent does not answer", c.id))
	}
}

// end closes the connection for good.
func (c *Conn) end() {
	c.mu.Lock()
	if c.ended {
		c.mu.Unlock()
		return
	}
	c.ended = true
	s := c.connection
	if c.giveUp != nil {
		c.giveUp.Stop()
	}
	close(c.change)
	c.change = make(chan struct{})
	c.mu.Unlock()
	c.ln.Close()
	if s != nil {
		s.close()
	}
	c.abandon()
}

// current returns the connection in use.
func (c *Conn) current() (*connection, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.connection == nil {
		return nil, errs.New(errs.Unavailable, "the agent of sandbox %s is not connected", c.id)
	}
	return c.connection, nil
}

// wait waits for a connection.
func (c *Conn) wait(ctx context.Context) (*connection, error) {
	for {
		c.mu.Lock()
		s, change, ended := c.connection, c.change, c.ended
		c.mu.Unlock()
		switch {
		case ended:
			return nil, errs.New(errs.Unavailable, "sandbox %s has ended", c.id)
		case s != nil:
			return s, nil
		}
		select {
		case <-change:
		case <-ctx.Done():
			return nil, errs.New(errs.Unavailable, "the agent of sandbox %s has not connected: %w", c.id, ctx.Err())
		}
	}
}

func (c *Conn) channel(id uint64) *channel {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.channels[id]
}

func (c *Conn) forget(ch *channel) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.channels[ch.id] == ch {
		delete(c.channels, ch.id)
	}
}

// setMain records the agent's report about the main process.
func (c *Conn) setMain(m agentproto.Main) {
	c.mu.Lock()
	c.takeMain(m)
	c.mu.Unlock()
	c.hub.c.Notify(c.id)
}

// takeMain is called with mu held.
func (c *Conn) takeMain(m agentproto.Main) {
	if c.main.State == MainExited { // the end is final
		return
	}
	c.main = MainStatus{PID: int(m.PID)}
	if m.StartedAt != 0 {
		c.main.StartedAt = time.Unix(0, m.StartedAt)
	}
	switch m.State {
	case agentproto.MainNone:
		c.main.State = MainNone
	case agentproto.MainPending:
		c.main.State = MainPending
	case agentproto.MainRunning:
		c.main.State = MainRunning
	case agentproto.MainExited:
		c.main.State = MainExited
		e := exitFrom(m.Exit)
		c.main.Exit = &e
		close(c.exited)
	}
}

// Connected says whether the agent is connected now.
func (c *Conn) Connected() bool {
	_, err := c.current()
	return err == nil
}

// Main returns the last known state of the main process.
func (c *Conn) Main() MainStatus {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.main
}

// MainExit is closed when the main process has ended; Main().Exit says how.
func (c *Conn) MainExit() <-chan struct{} { return c.exited }

// span begins the span of something that is asked of the agent.
func (c *Conn) span(ctx context.Context, name string) (context.Context, trace.Span) {
	ctx, span := trace.Start(ctx, name, trace.Client)
	span.Text("runtime.sandbox", c.id)
	return ctx, span
}

func (c *Conn) call(ctx context.Context, t agentproto.Type, m appender) (_ agentproto.Reply, err error) {
	ctx, span := c.span(ctx, "agent call")
	span.Int("runtime.agent.type", int64(t))
	defer func() { span.End(err) }()
	s, err := c.current()
	if err != nil {
		return agentproto.Reply{}, err
	}
	r, err := s.call(ctx, t, m)
	if err != nil {
		return agentproto.Reply{}, err
	}
	return r, failure(r.Failure)
}

// failure translates an agent's failure.
func failure(f agentproto.Failure) error {
	switch f.Kind {
	case agentproto.OK:
		return nil
	case agentproto.NotStarted:
		code := min(max(f.ExitCode, 1), 255)
		return errs.New(errs.InvalidArgument, "%s", f.Message).With("exit_code", strconv.FormatInt(code, 10))
	case agentproto.NotFound, agentproto.Lost:
		return errs.New(errs.NotFound, "%s", f.Message)
	case agentproto.Wrong:
		return errs.New(errs.FailedPrecondition, "%s", f.Message)
	case agentproto.Exhausted:
		return errs.New(errs.ResourceExhausted, "%s", f.Message)
	case agentproto.Exists:
		return errs.New(errs.AlreadyExists, "%s", f.Message)
	case agentproto.Denied:
		return errs.New(errs.PermissionDenied, "%s", f.Message)
	case agentproto.Invalid:
		return errs.New(errs.InvalidArgument, "%s", f.Message)
	case agentproto.Unsupported:
		return errs.New(errs.Unimplemented, "%s", f.Message)
	}
	return errs.New(errs.Internal, "the agent failed: %s", f.Message)
}

// StartMain starts the main process and returns when it runs; no error if it
// was started before. If it cannot be started the error is InvalidArgument with
// the detail "exit_code" (127 not found, 126 not executable), and the sandbox
// ends.
func (c *Conn) StartMain(ctx context.Context) error {
	_, err := c.call(ctx, agentproto.TStartMain, nil)
	if err != nil && errs.Detail(err, "exit_code") == "" {
		// A main process that ends at once ends its sandbox, which may take the answer with it, but not the record.
		if _, lost := c.hub.agentExit(c.id); lost == nil {
			return nil
		}
	}
	return err
}

// Signal sends a signal to the main process.
func (c *Conn) Signal(ctx context.Context, sig int) error {
	if sig < 0 || sig > 64 {
		return errs.New(errs.InvalidArgument, "%d is no signal", sig)
	}
	_, err := c.call(ctx, agentproto.TSignal, agentproto.Number(sig))
	return err
}

// CPUs returns how many CPUs programs should see with a limit in thousandths of
// a CPU; 0 without one.
func CPUs(millis int64) int64 { return (millis + 999) / 1000 }

// Configure gives the sandbox to its user; the driver sets its other limits. It
// may be repeated for the same claim; another one is FailedPrecondition, as is a
// sandbox that is not claimable.
func (c *Conn) Configure(ctx context.Context, i execution.Identity) error {
	m := agentproto.Configure{Claim: i.Claim, Hostname: i.Hostname, Env: i.Env, WorkDir: i.WorkDir, User: i.User, PIDs: i.PIDs, CPUs: CPUs(i.CPUMillis), Mounts: len(i.Mounts) > 0}
	payload := m.Append(nil)
	if len(payload) > agentproto.MaxFromNode {
		return errs.New(errs.InvalidArgument, "the environment has %d bytes, which is more than %d", len(payload), agentproto.MaxFromNode)
	}
	_, err := c.call(ctx, agentproto.TConfigure, raw(payload))
	return err
}

// Mount shows the volumes of a claim, which Configure announced, at their
// targets: the directories 0, 1, ... of agentproto.GuestVolume. It may be
// repeated.
func (c *Conn) Mount(ctx context.Context, i execution.Identity) error {
	m := agentproto.Mount{Claim: i.Claim}
	for _, v := range i.Mounts {
		m.Targets = append(m.Targets, v.Target)
	}
	_, err := c.call(ctx, agentproto.TMount, raw(m.Append(nil)))
	return err
}

// Listening returns the TCP sockets that accept connections, by port.
func (c *Conn) Listening(ctx context.Context) ([]Listener, error) {
	r, err := c.call(ctx, agentproto.TListening, nil)
	if err != nil {
		return nil, err
	}
	var list []Listener
	for _, l := range r.Listening {
		if a, ok := netip.AddrFromSlice([]byte(l.Addr)); ok {
			list = append(list, Listener{Port: int(l.Port), Addr: a.Unmap()})
		}
	}
	slices.SortFunc(list, func(a, b Listener) int {
		return cmp.Or(cmp.Compare(a.Port, b.Port), a.Addr.Compare(b.Addr))
	})
	return list, nil
}
