package agent

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/pkg/agentproto"
	"miren.dev/runtime/pkg/errs"
)

// Hub has the agents of all sandboxes of this machine. It is safe for
// concurrent use.
type Hub struct {
	c        HubConfig
	binaries binaries

	mu     sync.Mutex
	conns  map[string]*Conn
	closed bool
	stop   chan struct{} // closed by Close
	keeper sync.Once     // starts boundLogs
	tasks  sync.WaitGroup
}

// NewHub makes a hub; it does no IO.
func NewHub(c HubConfig) *Hub {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Heartbeat <= 0 {
		c.Heartbeat = agentproto.Heartbeat
	}
	if c.LogCheck <= 0 {
		c.LogCheck = logCheck
	}
	if c.Notify == nil {
		c.Notify = func(string) {}
	}
	if c.PIDs == nil {
		c.PIDs = func(string) ([]int, error) { return nil, nil }
	}
	if c.Exceeded == nil {
		c.Exceeded = func(string) {}
	}
	return &Hub{c: c, conns: map[string]*Conn{}, stop: make(chan struct{})}
}

// Prepare makes the directories of sandbox id, listens for its agent and
// returns the container's part. It is idempotent. It replaces the configuration
// of a sandbox that is prepared already, which has an effect until the
// sandbox's agent starts.
func (h *Hub) Prepare(id string, c GuestConfig) (Guest, error) {
	if err := checkID(id); err != nil {
		return Guest{}, err
	}
	token, err := h.readToken(id)
	if err != nil && !errs.Is(err, errs.NotFound) && !errs.Is(err, errs.Corrupt) {
		return Guest{}, err
	}
	if token == "" {
		token = newToken()
	}
	binary := ""
	err = h.useBinary(c.Binary, func(name string) error {
		binary = name
		return h.writeGuest(id, token, name, c)
	})
	if err != nil {
		return Guest{}, errs.Wrap(err, "prepare agent of %s", id)
	}
	if err := h.listen(id, token); err != nil {
		return Guest{}, err
	}
	g := Guest{
		Args: []string{agentproto.GuestBinary},
		// These variables are for the agent alone; the main process's are in its configuration. All of them reduce the
		// system calls of Go's runtime, each of which costs time in gVisor.
		Env: []string{"GOMAXPROCS=2", "GODEBUG=asyncpreemptoff=1,decoratemappings=0,containermaxprocs=0,updatemaxprocs=0"},
		Mounts: []Mount{
			{Source: h.dir(id), Target: agentproto.GuestDir, ReadOnly: true},
			{Source: h.binary(binary), Target: agentproto.GuestBinary, ReadOnly: true},
			{Source: h.spool(id), Target: agentproto.GuestLog},
		},
		Capabilities: []string{"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_KILL", "CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID"},
	}
	for _, name := range c.Capabilities {
		if !slices.Contains(g.Capabilities, name) {
			g.Capabilities = append(g.Capabilities, name)
		}
	}
	if c.PIDs > 0 || c.Claimable {
		g.Capabilities = append(g.Capabilities, "CAP_SYS_ADMIN")
	}
	return g, nil
}

// Attach listens again for the agent of a sandbox that an earlier hub prepared.
// NotFound if none did.
func (h *Hub) Attach(id string) error {
	if err := checkID(id); err != nil {
		return err
	}
	token, err := h.readToken(id)
	if err != nil {
		return err
	}
	return h.listen(id, token)
}

// listen makes the Conn of id unless it exists.
func (h *Hub) listen(id, token string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return errs.New(errs.Unavailable, "the agent hub is closed")
	}
	if h.conns[id] != nil {
		return nil
	}
	h.keeper.Do(func() { h.tasks.Go(h.boundLogs) })
	c := newConn(h, id, token)
	_ = os.Remove(filepath.Join(h.dir(id), hiddenSocket)) // of a server that ended during a snapshot
	ln, err := listenIn(h.dir(id))
	if err != nil {
		return errs.Wrap(err, "listen for agent of %s", id)
	}
	c.ln = ln
	h.conns[id] = c
	h.tasks.Go(c.accept)
	return nil
}

func (h *Hub) conn(id string) *Conn {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.conns[id]
}

// Conn waits until the agent of sandbox id is connected. NotFound if id was
// neither prepared nor attached, Unavailable if ctx ends before or the sandbox
// has ended.
func (h *Hub) Conn(ctx context.Context, id string) (*Conn, error) {
	c := h.conn(id)
	if c == nil {
		return nil, errs.New(errs.NotFound, "no agent of sandbox %s was prepared", id)
	}
	if _, err := c.wait(ctx); err != nil {
		return nil, err
	}
	return c, nil
}

// Ready returns the agent of sandbox id if it is connected and its main process
// has not ended; else nil.
func (h *Hub) Ready(id string) *Conn {
	c := h.conn(id)
	if c == nil || !c.Connected() || c.Main().State == MainExited {
		return nil
	}
	return c
}

// End records that the sandbox has ended and how. Readers of its log then stop
// waiting for more, and execs fail. An exit record of the agent is kept.
func (h *Hub) End(id string, e execution.Exit) error {
	if err := checkID(id); err != nil {
		return err
	}
	if c := h.conn(id); c != nil {
		c.end()
	}
	return h.writeEnded(id, e)
}

// Remove closes the connection of id and removes everything but its logs. It
// returns nil when nothing exists.
func (h *Hub) Remove(id string) error {
	if err := checkID(id); err != nil {
		return err
	}
	h.mu.Lock()
	c := h.conns[id]
	delete(h.conns, id)
	h.mu.Unlock()
	if c != nil {
		c.end()
	}
	config, _ := h.readConfig(id) // without one no agent is kept for it
	if err := os.RemoveAll(h.dir(id)); err != nil {
		return errs.Wrap(err, "remove agent directory of %s", id)
	}
	if config.Binary != "" && config.Binary != h.binaries.inUse() {
		if err := h.SweepBinaries(); err != nil {
			h.c.Logger.Warn("cannot remove an old agent", "error", err)
		}
	}
	return nil
}

// RemoveLogs removes the logs and the exit record of id.
func (h *Hub) RemoveLogs(id string) error {
	if err := checkID(id); err != nil {
		return err
	}
	if err := os.RemoveAll(h.logs(id)); err != nil {
		return errs.Wrap(err, "remove logs of %s", id)
	}
	return nil
}

// IDs returns the sandboxes that have a directory under Dir.
func (h *Hub) IDs() ([]string, error) { return listIDs(h.c.Dir) }

// LogIDs returns the sandboxes that have logs.
func (h *Hub) LogIDs() ([]string, error) { return listIDs(h.c.LogDir) }

func listIDs(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, errs.Wrap(err, "list sandboxes")
	}
	var ids []string
	for _, e := range entries {
		if e.IsDir() && checkID(e.Name()) == nil {
			ids = append(ids, e.Name())
		}
	}
	return ids, nil
}

// Close closes all connections and stops listening; the directories stay, and
// the agents redial the next hub.
func (h *Hub) Close() error {
	h.mu.Lock()
	if h.closed {
		h.mu.Unlock()
		return nil
	}
	h.closed = true
	close(h.stop)
	conns := h.conns
	h.conns = map[string]*Conn{}
	h.mu.Unlock()
	for _, c := range conns {
		c.end()
	}
	h.tasks.Wait()
	return nil
}

func (h *Hub) dir(id string) string   { return filepath.Join(h.c.Dir, id) }
func (h *Hub) logs(id string) string  { return filepath.Join(h.c.LogDir, id) }
func (h *Hub) spool(id string) string { return filepath.Join(h.c.LogDir, id, spoolName) }

// checkID rejects ids that could name other paths.
func checkID(id string) error {
	ok := len(id) >= 1 && len(id) <= 63
	for _, r := range id {
		ok = ok && (r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '-')
	}
	if !ok {
		return errs.New(errs.InvalidArgument, "sandbox id %q is not 1-63 of a-z, 0-9 and -", id)
	}
	return nil
}
