package network

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"miren.dev/runtime/pkg/egress"
	"miren.dev/runtime/pkg/errs"
)

// A parked connection is a network namespace that is connected and closed, and
// waits for a sandbox. Its name begins with parkedPrefix, which no sandbox id does,
// and stays when a sandbox has taken it. It serves one sandbox only. A server that
// starts removes those of the server before, which no sandbox uses.
const parkedPrefix = "parked."

func isParked(name string) bool { return strings.HasPrefix(name, parkedPrefix) }

// refillDelay is how long after a connection was taken others are made: until then
// the sandbox that took it is being started, and needs the CPU.
const refillDelay = 500 * time.Millisecond

// take gives a sandbox a parked connection and its policy. ok is false if there is none.
func (m *Manager) take(id string, p egress.Policy) (at Attachment, ok bool, _ error) {
	m.mu.Lock()
	if !m.started || len(m.parked) == 0 {
		m.mu.Unlock()
		return at, false, nil
	}
	name := m.parked[0]
	l := lease{Address: m.leases[name].Address, Policy: p, Name: name}
	// If the server ends now, the lease of the sandbox counts.
	if err := m.keep(id, l); err != nil {
		m.mu.Unlock()
		return at, false, err
	}
	m.parked = m.parked[1:]
	delete(m.leases, name)
	err := os.Remove(filepath.Join(m.leaseDir(), name))
	m.mu.Unlock()
	m.wantParked()
	if err != nil {
		return at, true, errs.New(errs.Unavailable, "connection %s: %w", name, err)
	}
	return Attachment{NetNS: m.netNS(name), Address: l.Address}, true, m.permit(id, l.Address, p)
}

// wantParked wakes refill.
func (m *Manager) wantParked() {
	select {
	case m.taken <- struct{}{}:
	default:
	}
}

// refill keeps the stock of parked connections until ctx ends.
func (m *Manager) refill(ctx context.Context) error {
	failing := false
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-m.taken:
		}
		for quiet := false; !quiet; {
			select {
			case <-ctx.Done():
				return nil
			case <-m.taken:
			case <-time.After(refillDelay):
				quiet = true
			}
		}
		err := m.park(ctx)
		if err != nil && !failing && ctx.Err() == nil {
			m.cfg.Logger.Warn("cannot connect network namespaces ahead; sandboxes are connected when they are made", "error", err)
		}
		failing = err != nil
	}
}

// park makes connections until the stock is full.
func (m *Manager) park(ctx context.Context) error {
	m.parking.Lock()
	defer m.parking.Unlock()
	for ctx.Err() == nil {
		m.mu.Lock()
		full := !m.started || len(m.parked) >= m.cfg.Parked
		m.mu.Unlock()
		if full {
			return nil
		}
		name := parkedPrefix + strings.ToLower(rand.Text()[:16])
		if _, err := m.connect(ctx, name, Options{Bridge: true, Policy: egress.Closed()}); err != nil {
			return err
		}
		m.mu.Lock()
		m.parked = append(m.parked, name)
		m.mu.Unlock()
	}
	return nil
}

// sweepParked removes all parked connections, incomplete ones too.
func (m *Manager) sweepParked(ctx context.Context) error {
	m.parking.Lock()
	defer m.parking.Unlock()
	m.mu.Lock()
	m.parked = nil
	used, unused := map[string]bool{}, []string{}
	for id, l := range m.leases {
		if isParked(id) {
			unused = append(unused, id)
		} else {
			used[l.name(id)] = true
		}
	}
	m.mu.Unlock()
	var failed error
	for _, name := range unused {
		failed = errors.Join(failed, m.Detach(ctx, name))
	}
	entries, err := os.ReadDir(m.netnsDir())
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return errs.New(errs.Unavailable, "list network namespaces: %w", err)
	}
	for _, e := range entries {
		if isParked(e.Name()) && !used[e.Name()] {
			if err := removeNetNS(m.netNS(e.Name())); err != nil {
				failed = errors.Join(failed, fmt.Errorf("network namespace %s: %w", e.Name(), err))
			}
		}
	}
	return failed
}
