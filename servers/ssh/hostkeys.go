package sshserver

import (
	"crypto/rand"
	"slices"

	"golang.org/x/crypto/ssh"
)

// Requests of OpenSSH by which clients learn keys (PROTOCOL, section 2.5).
const (
	hostKeysRequest  = "hostkeys-00@openssh.com"
	proveKeysRequest = "hostkeys-prove-00@openssh.com"
)

// hostKeys are the host keys of the gateway: the current one, which a connection
// begins with, and the next one.
type hostKeys []ssh.Signer

// SetHostKeys sets the keys of the connections that begin from now on.
func (a *Authority) SetHostKeys(current, next ssh.Signer) { a.host.Store(&hostKeys{current, next}) }

// HostKeys returns the public keys of the server, as in .pub files: the current
// one and the next one.
func (a *Authority) HostKeys() (lines []string) {
	for _, k := range a.hostKeys() {
		lines = append(lines, line(k.PublicKey()))
	}
	return lines
}

func (a *Authority) hostKeys() hostKeys {
	if k := a.host.Load(); k != nil {
		return *k
	}
	return nil
}

// announce tells a client which keys the server has. One that wants to remember
// them asks for proofs.
func (k hostKeys) announce(c ssh.Conn) {
	var payload []byte
	for _, s := range k {
		payload = append(payload, ssh.Marshal(struct{ Key []byte }{s.PublicKey().Marshal()})...)
	}
	_, _, _ = c.SendRequest(hostKeysRequest, false, payload) // a connection that is lost ends elsewhere
}

// prove returns the signatures that prove to the client of a session that the
// server has the keys which it lists; nil if it does not have them.
func (k hostKeys) prove(session, list []byte) []byte {
	var proofs []byte
	for n := 0; len(list) > 0; n++ {
		var m struct {
			Key  []byte
			Rest []byte `ssh:"rest"`
		}
		if ssh.Unmarshal(list, &m) != nil || n == len(k) {
			return nil
		}
		list = m.Rest
		i := slices.IndexFunc(k, func(s ssh.Signer) bool { return string(s.PublicKey().Marshal()) == string(m.Key) })
		if i < 0 {
			return nil
		}
		sig, err := k[i].Sign(rand.Reader, ssh.Marshal(struct {
			Request      string
			Session, Key []byte
		}{proveKeysRequest, session, m.Key}))
		if err != nil {
			return nil
		}
		proofs = append(proofs, ssh.Marshal(struct{ Signature []byte }{ssh.Marshal(sig)})...)
	}
	return proofs
}
