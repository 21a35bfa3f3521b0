package agent

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"miren.dev/runtime/pkg/agentproto"
	"miren.dev/runtime/pkg/errs"
)

// hiddenSocket is the name of the socket while a snapshot is taken, where no agent finds it.
const hiddenSocket = agentproto.SocketName + ".hidden"

// Identity is the identity of a restored sandbox.
type Identity = agentproto.Identity

// IdentityFile is a file of the guest with lines that say where the sandbox is.
type IdentityFile = agentproto.IdentityFile

// Suspend makes the agent of a sandbox let go of the host, for a snapshot: when it returns, the agent has closed its log
// and its connection, and does not find the socket. Execs go on. They stay usable if Readmit follows. After an error the
// agent is as before. FailedPrecondition: the agent is older than snapshots.
func (h *Hub) Suspend(ctx context.Context, id string) error {
	c := h.conn(id)
	if c == nil {
		return errs.New(errs.NotFound, "no agent of sandbox %s was prepared", id)
	}
	if _, err := c.wait(ctx); err != nil {
		return err
	}
	c.setSuspended(true)
	if err := h.rename(id, agentproto.SocketName, hiddenSocket); err != nil {
		c.setSuspended(false)
		return errs.Wrap(err, "hide the socket of the agent of %s", id)
	}
	_, err := c.call(ctx, agentproto.TSuspend, nil)
	if err == nil {
		err = c.disconnect(ctx)
	}
	if err == nil {
		return nil
	}
	if errs.Is(err, errs.Unimplemented) {
		err = errs.New(errs.FailedPrecondition, "the agent of sandbox %s is of a version that cannot be suspended", id).
			WithHint("sandboxes that are created from now on can be")
	}
	return errors.Join(err, h.Readmit(id))
}

// Readmit lets a suspended agent connect again. It may be repeated.
func (h *Hub) Readmit(id string) error {
	if c := h.conn(id); c != nil {
		c.setSuspended(false)
	}
	err := h.rename(id, hiddenSocket, agentproto.SocketName)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return errs.Wrap(err, "show the socket to the agent of %s", id)
	}
	return nil
}

// rename gives the socket of a sandbox another name. It does not use atomicfile: no socket outlives a crash of the machine.
func (h *Hub) rename(id, from, to string) error {
	return os.Rename(filepath.Join(h.dir(id), from), filepath.Join(h.dir(id), to))
}

// setSuspended says whether the loss of the connection is on purpose.
func (c *Conn) setSuspended(on bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.suspended = on
}

// disconnect closes the connection in use, and returns when it is gone.
func (c *Conn) disconnect(ctx context.Context) error {
	for {
		c.mu.Lock()
		s, change := c.connection, c.change
		c.mu.Unlock()
		if s == nil {
			return nil
		}
		s.close()
		select {
		case <-change:
		case <-ctx.Done():
			return errs.Wrap(ctx.Err(), "disconnect the agent of %s", c.id)
		}
	}
}

// Identify gives a restored sandbox its identity and continues its log, also after an error. PermissionDenied: its kernel
// has another host name. The caller changes that and repeats Identify.
func (c *Conn) Identify(ctx context.Context, i Identity) error {
	_, err := c.call(ctx, agentproto.TIdentify, i)
	return err
}
