package agentproto

// A snapshot has the agent's memory, and every file that it had open. Before one is taken the node sends TSuspend: the
// agent closes its log, detaches its channels and replies. The node then closes the connection, and no socket can be
// dialed until the snapshot is done. An agent that afterwards finds the token that it had before just goes on. One that
// finds another token is in a restored sandbox: it writes no log until the node has sent TIdentify.

// Identity is the identity of a restored sandbox, in place of the snapshot's.
type Identity struct {
	Files []IdentityFile
	// Hostname is that of the sandbox's specification. If the kernel has another, which a claim has set, the answer is
	// Denied. Agents of earlier versions ignore it.
	Hostname string
}

// IdentityFile is a file with lines that say where the sandbox is. The agent removes those that are in Old and not in
// New, puts those of New that are not in Old in their place, and keeps the lines of the guest. It leaves a file alone that
// has none to remove.
type IdentityFile struct {
	Path     string
	Old, New string
}

// MaxIdentityFiles is how many files an Identity has at most.
const MaxIdentityFiles = 16

// Append appends the message to b.
func (m Identity) Append(b []byte) []byte {
	b = putUint(b, uint64(len(m.Files)))
	for _, f := range m.Files {
		b = putString(putString(putString(b, f.Path), f.Old), f.New)
	}
	return putString(b, m.Hostname)
}

// DecodeIdentity is the reverse of Append.
func DecodeIdentity(p []byte) (Identity, error) {
	d := decoder{b: p}
	n := d.uint()
	if n > MaxIdentityFiles {
		return Identity{}, ErrMalformed
	}
	var m Identity
	for range n {
		m.Files = append(m.Files, IdentityFile{Path: d.string(), Old: d.string(), New: d.string()})
	}
	m.Hostname = d.string()
	return m, d.err()
}
