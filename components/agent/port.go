package agent

import (
	"context"
	"fmt"
	"net"
	"time"

	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/pkg/agentproto"
	"miren.dev/runtime/pkg/errs"
)

// dialLinger is how long a connection inside outlives the loss of the agent's.
const dialLinger = 15 * time.Second

// Dial connects to a TCP port inside the sandbox, on whatever address something
// listens. FailedPrecondition if nothing does.
func (c *Conn) Dial(ctx context.Context, port int) (*PortConn, error) {
	if port < 1 || port > 65535 {
		return nil, errs.New(errs.InvalidArgument, "%d is no port", port)
	}
	ch, err := c.open(ctx, agentproto.Open{
		Kind: agentproto.KindDial, Lifetime: agentproto.LifeLinger, Linger: int64(dialLinger),
		Params: agentproto.Dial{Port: uint64(port)}.Append(nil),
	})
	if err != nil {
		return nil, err
	}
	return &PortConn{ch: ch, port: port}, nil
}

// PortConn is a connection to a port of a sandbox.
type PortConn struct {
	ch   *channel
	port int
}

var _ execution.Conn = (*PortConn)(nil)

func (p *PortConn) Read(b []byte) (int, error)  { return p.ch.out.Read(b) }
func (p *PortConn) Write(b []byte) (int, error) { return p.ch.in.Write(b) }

// CloseWrite ends what is sent, as shutdown does.
func (p *PortConn) CloseWrite() error { return p.ch.in.Close() }

// Close ends the connection; data that was written before still arrives if the other side reads it.
func (p *PortConn) Close() error {
	p.ch.close()
	return nil
}

// LocalAddr is the node.
func (p *PortConn) LocalAddr() net.Addr { return portAddr("node") }

// RemoteAddr names the sandbox and the port.
func (p *PortConn) RemoteAddr() net.Addr { return portAddr(fmt.Sprintf("%s:%d", p.ch.c.id, p.port)) }

// SetDeadline is net.Conn's.
func (p *PortConn) SetDeadline(t time.Time) error {
	p.ch.out.setDeadline(t)
	p.ch.in.setDeadline(t)
	return nil
}

// SetReadDeadline is net.Conn's.
func (p *PortConn) SetReadDeadline(t time.Time) error { p.ch.out.setDeadline(t); return nil }

// SetWriteDeadline is net.Conn's.
func (p *PortConn) SetWriteDeadline(t time.Time) error { p.ch.in.setDeadline(t); return nil }

type portAddr string

func (portAddr) Network() string  { return "sandbox" }
func (a portAddr) String() string { return string(a) }

// deadline ends waits on a condition. Its owner's lock guards it.
type deadline struct {
	passed bool
	timer  *time.Timer
	set    int // how often it was set
}

// reset sets the deadline; the zero time is none. wake is called with the lock
// held when it has passed.
func (d *deadline) reset(t time.Time, lock interface {
	Lock()
	Unlock()
}, wake func()) {
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
	d.set++
	d.passed = !t.IsZero() && !t.After(time.Now())
	if d.passed {
		wake()
	} else if !t.IsZero() {
		set := d.set
		d.timer = time.AfterFunc(time.Until(t), func() {
			lock.Lock()
			defer lock.Unlock()
			if d.set == set {
				d.passed = true
				wake()
			}
		})
	}
}

// Activity returns how much the sandbox is used. To ask is no use.
func (c *Conn) Activity(ctx context.Context) (execution.Activity, error) {
	b, err := c.request(ctx, agentproto.KindActivity, nil)
	if err != nil {
		return execution.Activity{}, err
	}
	m, err := agentproto.DecodeActivity(b)
	if err != nil {
		return execution.Activity{}, errs.New(errs.Internal, "activity of %s: %w", c.id, err)
	}
	return execution.Activity{
		Idle: time.Duration(max(0, m.Idle)), Processes: int(min(m.Processes, agentproto.MaxChannels)),
		Connections: int(min(m.Others, agentproto.MaxChannels)),
	}, nil
}
