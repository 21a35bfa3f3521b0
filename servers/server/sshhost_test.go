package server

import (
	"context"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	gossh "golang.org/x/crypto/ssh"

	"miren.dev/runtime/api/server"
	"miren.dev/runtime/pkg/rpc"
	"miren.dev/runtime/testsupport/wait"
)

// hostClient is an SSH client that gets to know the keys of the gateway.
type hostClient struct {
	gossh.Conn
	key   string   // with which the connection began
	told  []string // keys that the gateway says it has
	blobs [][]byte
}

func keyLine(k gossh.PublicKey) string {
	return strings.TrimSpace(string(gossh.MarshalAuthorizedKey(k)))
}

func (e *sshEnv) host(key gossh.Signer) *hostClient {
	e.t.Helper()
	nc, err := net.Dial("tcp", e.address)
	if err != nil {
		e.t.Fatal(err)
	}
	c := &hostClient{}
	conn, channels, requests, err := gossh.NewClientConn(nc, e.address, &gossh.ClientConfig{
		User: "any", Auth: []gossh.AuthMethod{gossh.PublicKeys(key)}, Timeout: time.Minute,
		HostKeyCallback: func(_ string, _ net.Addr, k gossh.PublicKey) error { c.key = keyLine(k); return nil },
	})
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(func() { _ = conn.Close() })
	c.Conn = conn
	go func() {
		for ch := range channels {
			_ = ch.Reject(gossh.Prohibited, "")
		}
	}()
	list := make(chan []byte, 1)
	go func() {
		for r := range requests {
			if r.Type == "hostkeys-00@openssh.com" {
				list <- r.Payload
			} else if r.WantReply {
				_ = r.Reply(false, nil)
			}
		}
	}()
	for rest := wait.Receive(e.t, "the gateway tells its keys", list); len(rest) > 0; {
		var m struct {
			Key  []byte
			Rest []byte `ssh:"rest"`
		}
		if err := gossh.Unmarshal(rest, &m); err != nil {
			e.t.Fatal(err)
		}
		k, err := gossh.ParsePublicKey(m.Key)
		if err != nil {
			e.t.Fatal(err)
		}
		c.told, c.blobs, rest = append(c.told, keyLine(k)), append(c.blobs, m.Key), m.Rest
	}
	return c
}

// prove asks for proofs of keys; false: they were refused.
func (c *hostClient) prove(t *testing.T, keys ...[]byte) bool {
	t.Helper()
	var list []byte
	for _, k := range keys {
		list = append(list, gossh.Marshal(struct{ Key []byte }{k})...)
	}
	ok, rest, err := c.SendRequest("hostkeys-prove-00@openssh.com", true, list)
	if err != nil {
		t.Fatal(err)
	}
	if !ok {
		return false
	}
	for _, blob := range keys {
		var m struct {
			Signature []byte
			Rest      []byte `ssh:"rest"`
		}
		if err := gossh.Unmarshal(rest, &m); err != nil {
			t.Fatal(err)
		}
		rest = m.Rest
		var sig gossh.Signature
		if err := gossh.Unmarshal(m.Signature, &sig); err != nil {
			t.Fatal(err)
		}
		k, err := gossh.ParsePublicKey(blob)
		if err != nil {
			t.Fatal(err)
		}
		signed := gossh.Marshal(struct {
			Request      string
			Session, Key []byte
		}{"hostkeys-prove-00@openssh.com", c.SessionID(), blob})
		if err := k.Verify(signed, &sig); err != nil {
			t.Errorf("a proof of %s: %v", keyLine(k), err)
		}
	}
	return len(rest) == 0
}

// TestSSHHostKeyRotation: a client learns of the next key, with a proof, before a
// rotation makes it the current one. Connections that are open go on, and other
// servers follow.
func TestSSHHostKeyRotation(t *testing.T) {
	e := newSSHEnv(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- e.c.informers.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	key := newSigner(t)
	e.add(key, "alice", time.Hour, rpc.RoleAdmin)
	first := e.host(key)
	if len(first.told) != 2 || first.told[0] != first.key || !first.prove(t, first.blobs...) {
		t.Fatalf("%s: %q", first.key, first.told)
	}
	if foreign := newSigner(t).PublicKey().Marshal(); first.prove(t, foreign) || first.prove(t, first.blobs[0], foreign) {
		t.Error("it proves to have a key that it does not have")
	}
	if first.prove(t, first.blobs[0], first.blobs[0], first.blobs[0]) {
		t.Error("it proves more keys than it has")
	}
	if got := e.f.sshPrivate.HostKeys(); !slices.Equal(got, first.told) {
		t.Errorf("certificates come with %q", got)
	}
	if _, err := server.NewSSHClient(e.root()).RotateHostKey(t.Context()); err != nil {
		t.Fatal(err)
	}
	second := e.host(key)
	if second.key != first.told[1] || second.told[0] != second.key || slices.Contains(first.told, second.told[1]) || !second.prove(t, second.blobs...) {
		t.Errorf("%s: %q, before %q", second.key, second.told, first.told)
	}
	if !first.prove(t, first.blobs...) {
		t.Error("an open connection does not go on")
	}
	// Another server rotates them.
	if _, err := e.f.hostKeys().Rotate(t.Context()); err != nil {
		t.Fatal(err)
	}
	wait.For(t, "the keys of another server", func() bool { return e.host(key).key == second.told[1] })
}
