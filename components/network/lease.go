package network

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"path/filepath"

	"miren.dev/runtime/pkg/atomicfile"
	"miren.dev/runtime/pkg/egress"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/fault"
)

// lease is the content of the file of a sandbox in leaseDir.
type lease struct {
	// Address is the zero Addr until the CNI plugins have given one: they may have
	// begun to connect the sandbox.
	Address netip.Addr    `json:"address,omitzero"`
	Policy  egress.Policy `json:"policy"`
	// Name of the namespace and the connection, if they were parked; else it is the sandbox's id.
	Name string `json:"name,omitempty"`
}

// name returns the name of the namespace and the connection of a sandbox.
func (l lease) name(id string) string { return cmp.Or(l.Name, id) }

// connection returns the lease of the connection with this name. Callers hold m.mu.
func (m *Manager) connection(name string) lease {
	if l, ok := m.leases[name]; ok {
		return l
	}
	for _, l := range m.leases {
		if l.Name == name {
			return l
		}
	}
	return lease{}
}

// readLease reads the content of a file. Earlier versions wrote the address only,
// and had no policies.
func readLease(b []byte) (l lease, err error) {
	if b = bytes.TrimSpace(b); len(b) > 0 && b[0] != '{' {
		l.Policy = egress.Open()
		l.Address, err = netip.ParseAddr(string(b))
		return l, err
	}
	if err := json.Unmarshal(b, &l); err != nil {
		return l, err
	}
	if l.Address.IsValid() && !l.Address.Is4() {
		return l, errors.New("its address is not of IPv4")
	}
	return l, l.Policy.Validate()
}

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
	leases, used := map[string]lease{}, map[netip.Addr]bool{}
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
		l, err := readLease(b)
		if err != nil { // the machine crashed before the contents were written, or another program wrote there
			m.cfg.Logger.Warn("the record of a sandbox's address is damaged; the sandbox lost the address", "sandbox", e.Name(), "error", err)
			if err := os.Remove(filepath.Join(m.leaseDir(), e.Name())); err != nil {
				return errs.New(errs.Unavailable, "remove lost address: %w", err)
			}
			continue
		}
		leases[e.Name()] = l
		if l.Address.IsValid() {
			used[l.Address] = true
		}
	}
	for id, l := range leases {
		// The server ended while a sandbox took it.
		if _, ok := leases[l.Name]; ok && l.Name != id {
			delete(leases, l.Name)
			if err := os.Remove(filepath.Join(m.leaseDir(), l.Name)); err != nil {
				return errs.New(errs.Unavailable, "remove address: %w", err)
			}
		}
	}
	m.leases, m.used = leases, used
	return nil
}

// freeAddress returns an address of the subnet that no sandbox has. Callers hold m.mu.
func (m *Manager) freeAddress() (netip.Addr, error) {
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
		m.last = a
		return a, nil
	}
	return netip.Addr{}, errs.New(errs.ResourceExhausted, "all addresses of %s are in use", m.subnet)
}

// keep writes a lease. It is not synced: a sandbox should start fast, and none
// outlives a crash of the machine. Callers hold m.mu.
func (m *Manager) keep(id string, l lease) error {
	if err := m.saveLease(id, l); err != nil {
		return errs.New(errs.FailedPrecondition, "save address: %w", err)
	}
	m.leases[id] = l
	if l.Address.IsValid() {
		m.used[l.Address] = true
	}
	return nil
}

func (m *Manager) saveLease(id string, l lease) error {
	b, err := json.Marshal(l)
	if err != nil {
		return err
	}
	b = append(b, '\n')
	path := filepath.Join(m.leaseDir(), id)
	if done, err := overwrite(path, b); done || err != nil {
		return err
	}
	if err := os.MkdirAll(m.leaseDir(), 0o755); err != nil {
		return err
	}
	f, err := atomicfile.Create(path, 0o644, atomicfile.Volatile)
	if err != nil {
		return err
	}
	defer f.Abort()
	if _, err := f.Write(b); err != nil {
		return err
	}
	fault.Point("setup", "address", fault.Before)
	return f.Commit()
}

// inPlace is how many bytes of a file the kernel writes whole, even if the process
// is killed meanwhile.
const inPlace = 4096

// overwrite replaces the content of a small file that exists. ext4 writes a file
// to disk that is renamed over another, which takes 10 ms of a claim.
func overwrite(path string, b []byte) (done bool, _ error) {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil || max(int64(len(b)), st.Size()) > inPlace {
		return false, err
	}
	if n := int(st.Size()) - len(b); n > 0 { // JSON ignores space behind it
		b = append(b, bytes.Repeat([]byte{' '}, n)...)
	}
	_, err = f.Write(b)
	return err == nil, err
}

// release frees the address of id. Callers hold m.mu.
func (m *Manager) release(id string) error {
	if err := os.Remove(filepath.Join(m.leaseDir(), id)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return errs.New(errs.Unavailable, "release address of %s: %w", id, err)
	}
	if l, ok := m.leases[id]; ok {
		delete(m.leases, id)
		delete(m.used, l.Address)
	}
	return nil
}
