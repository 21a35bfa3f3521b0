package network

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"miren.dev/runtime/pkg/atomicfile"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/fault"
)

func (m *Manager) leaseDir() string { return m.cfg.Instance.Socket("network") }

// loadLeases reads the address of each sandbox. Callers hold m.mu.
func (m *Manager) loadLeases() error {
	entries, err := os.ReadDir(m.leaseDir())
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return errs.New(errs.Unavailable, "list addresses: %w", err)
	}
	leases, used := map[string]netip.Addr{}, map[netip.Addr]bool{}
	for _, e := range entries {
		if atomicfile.IsTemp(e.Name()) { // its writer was killed
			if err := os.Remove(filepath.Join(m.leaseDir(), e.Name())); err != nil {
				return errs.New(errs.Unavailable, "remove unfinished address: %w", err)
			}
			continue
		}
		b, err := os.ReadFile(filepath.Join(m.leaseDir(), e.Name()))
		if err != nil {
			return errs.New(errs.Unavailable, "read address: %w", err)
		}
		addr, err := netip.ParseAddr(strings.TrimSpace(string(b)))
		if err != nil { // the machine crashed before the contents were written, or another program wrote there
			m.cfg.Logger.Warn("the record of a sandbox's address is damaged; the sandbox lost the address", "sandbox", e.Name(), "error", err)
			if err := os.Remove(filepath.Join(m.leaseDir(), e.Name())); err != nil {
				return errs.New(errs.Unavailable, "remove lost address: %w", err)
			}
			continue
		}
		leases[e.Name()], used[addr] = addr, true
	}
	m.leases, m.used = leases, used
	return nil
}

// lease gives id an address, the same one if it has one. Callers hold m.mu.
func (m *Manager) lease(id string) (netip.Addr, error) {
	if a, ok := m.leases[id]; ok {
		return a, nil
	}
	// Search in a circle, so that an address is not reused while a peer may still know its last owner.
	first := m.gateway().Next()
	a := m.last
	for range 1 << (32 - m.subnet.Bits()) {
		if a = a.Next(); !m.subnet.Contains(a) || a.Compare(first) < 0 {
			a = first
		}
		if m.used[a] || !m.subnet.Contains(a.Next()) { // the last one is the broadcast address
			continue
		}
		if err := os.MkdirAll(m.leaseDir(), 0o755); err != nil {
			return netip.Addr{}, errs.New(errs.FailedPrecondition, "save address: %w", err)
		}
		if err := m.saveLease(id, a); err != nil {
			return netip.Addr{}, errs.New(errs.FailedPrecondition, "save address: %w", err)
		}
		m.leases[id], m.used[a], m.last = a, true, a
		return a, nil
	}
	return netip.Addr{}, errs.New(errs.ResourceExhausted, "all addresses of %s are in use", m.subnet)
}

// saveLease writes the lease. It is not synced: a sandbox should start fast, and
// none outlives a crash of the machine.
func (m *Manager) saveLease(id string, a netip.Addr) error {
	f, err := atomicfile.Create(filepath.Join(m.leaseDir(), id), 0o644, atomicfile.Volatile)
	if err != nil {
		return err
	}
	defer f.Abort()
	if _, err := f.WriteString(a.String() + "\n"); err != nil {
		return err
	}
	fault.Point("setup", "address", fault.Before)
	return f.Commit()
}

// release frees the address of id. Callers hold m.mu.
func (m *Manager) release(id string) error {
	if err := os.Remove(filepath.Join(m.leaseDir(), id)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return errs.New(errs.Unavailable, "release address of %s: %w", id, err)
	}
	if a, ok := m.leases[id]; ok {
		delete(m.leases, id)
		delete(m.used, a)
	}
	return nil
}
