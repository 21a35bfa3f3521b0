package network

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// linkDir has a directory for each interface of the machine.
const linkDir = "/sys/class/net"

// Traffic returns how many bytes a sandbox received and sent since it was connected.
// false if that is not measured: it has no network, or its interface is that of other
// CNI plugins.
func (m *Manager) Traffic(id string) (received, sent int64, ok bool) {
	m.mu.Lock()
	l, leased := m.leases[id]
	m.mu.Unlock()
	if !leased || !l.Address.IsValid() {
		return 0, 0, false
	}
	// What the machine's end of the link sends the sandbox receives.
	received, ok = counter(m.linkName(l.Address), "tx_bytes")
	if !ok {
		return 0, 0, false
	}
	sent, ok = counter(m.linkName(l.Address), "rx_bytes")
	return received, sent, ok
}

func counter(link, name string) (int64, bool) {
	b, err := os.ReadFile(filepath.Join(linkDir, link, "statistics", name))
	if err != nil {
		return 0, false // the link is gone, or was never ours
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	return n, err == nil
}
