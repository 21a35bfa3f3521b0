package sshkeys

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"encoding/pem"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"miren.dev/runtime/api"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/testsupport/pgtest"
)

func publicKey(t *testing.T, key any) string {
	t.Helper()
	k, err := ssh.NewPublicKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return string(ssh.MarshalAuthorizedKey(k))
}

func newKey(t *testing.T) string {
	t.Helper()
	pub, _, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return publicKey(t, pub)
}

func rsaKey(t *testing.T, bits int) string {
	t.Helper()
	k, err := rsa.GenerateKey(rand.Reader, bits)
	if err != nil {
		t.Fatal(err)
	}
	return publicKey(t, &k.PublicKey)
}

// TestParse accepts public keys that are strong enough, and says what is wrong
// with others.
func TestParse(t *testing.T) {
	good := newKey(t)
	for _, line := range []string{good, strings.TrimSpace(good) + " alice@host\n", rsaKey(t, 2048)} {
		if _, err := Parse(line); err != nil {
			t.Errorf("%.40s: %v", line, err)
		}
	}
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	block, err := ssh.MarshalPrivateKey(private, "")
	if err != nil {
		t.Fatal(err)
	}
	for line, want := range map[string]string{
		"": "no SSH public key", "ssh-ed25519 AAAA": "no SSH public key", good + good: "more than one", `command="x" ` + good: "options",
		rsaKey(t, 1024): "1024 bits", string(pem.EncodeToMemory(block)): "private key",
	} {
		if _, err := Parse(line); !errs.Is(err, errs.InvalidArgument) || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: %v, want %q", line, err, want)
		}
	}
}

// TestKeysAreAddedOnceAndDeleted: by id or fingerprint.
func TestKeysAreAddedOnceAndDeleted(t *testing.T) {
	s := &Service{Store: pgtest.Store(t, api.Kinds()...)}
	for i, line := range []string{newKey(t), newKey(t)} {
		k, err := s.Add(t.Context(), AddRequest{Identity: "alice", PublicKey: line, Roles: []string{"admin"}, Life: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Add(t.Context(), AddRequest{Identity: "bob", PublicKey: line, Life: time.Hour}); !errs.Is(err, errs.AlreadyExists) {
			t.Errorf("again: %v", err)
		}
		which := []string{string(k.ID), k.Spec.Fingerprint}[i]
		if _, err := s.Delete(t.Context(), which); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Delete(t.Context(), which); !errs.Is(err, errs.NotFound) {
			t.Errorf("deleted again: %v", err)
		}
	}
}

// TestIndexHoldsValidKeys: an expired or deleted key is not found, and an older
// state that arrives late does not bring a deleted one back.
func TestIndexHoldsValidKeys(t *testing.T) {
	s := &Service{Store: pgtest.Store(t, api.Kinds()...)}
	k, err := s.Add(t.Context(), AddRequest{Identity: "alice", PublicKey: newKey(t), Life: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	x := NewIndex()
	if x.Put(k) || !x.Put(k) {
		t.Error("Put does not tell what is new")
	}
	if got, err := x.Find(k.Spec.Fingerprint); err != nil || got.Spec.Identity != "alice" {
		t.Error(got, err)
	}
	expired, forged := *k, *k
	expired.Spec.ExpiresAt = time.Now()
	x.Put(&expired)
	if _, err := x.Find(k.Spec.Fingerprint); !errs.Is(err, errs.Unauthenticated) {
		t.Errorf("expired: %v", err)
	}
	forged.Spec.Fingerprint = "SHA256:another"
	x.Put(&forged)
	if _, err := x.Find("SHA256:another"); err == nil {
		t.Error("the fingerprint of an entity is not that of its key")
	}
	x.Remove(k.ID)
	x.Put(k)
	if _, err := x.Find(k.Spec.Fingerprint); !errs.Is(err, errs.Unauthenticated) {
		t.Errorf("deleted: %v", err)
	}
}
