package sshkeys

import (
	"context"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/crypto/ssh"

	"miren.dev/runtime/api"
	"miren.dev/runtime/api/core"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/testsupport/pgtest"
)

func line(s ssh.Signer) string {
	return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(s.PublicKey())))
}

// checkHost: the private keys are those of the public ones, and sealed.
func checkHost(t *testing.T, h *HostKeys, k *core.SSHHost) {
	t.Helper()
	current, next, err := h.Signers(k)
	if err != nil || line(current) != k.Spec.CurrentKey || line(next) != k.Spec.NextKey || k.Spec.CurrentKey == k.Spec.NextKey {
		t.Errorf("%+v, %v", k.Spec, err)
	}
	if !k.Spec.CurrentPrivate.Sealed() || !k.Spec.NextPrivate.Sealed() {
		t.Error("a private key is not sealed")
	}
}

// TestHostKeysAreOfTheCluster: every server has the same, which a rotation
// changes by one step, also when several ask for it at the same time.
func TestHostKeysAreOfTheCluster(t *testing.T) {
	store, sealer := pgtest.Store(t, api.Kinds()...), schema.NewSealer(filepath.Join(t.TempDir(), "key"))
	h := &HostKeys{Store: store, Sealer: sealer}
	var wg sync.WaitGroup
	made := make([]*core.SSHHost, 8)
	for i := range made {
		wg.Go(func() {
			k, err := h.Ensure(t.Context())
			if err != nil {
				t.Error(err)
				return
			}
			made[i] = k
		})
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
	first := made[0]
	for _, k := range made {
		if k.Spec.CurrentKey != first.Spec.CurrentKey || k.Spec.NextKey != first.Spec.NextKey {
			t.Fatal("two servers made keys")
		}
	}
	checkHost(t, h, first)
	second, err := h.Rotate(t.Context())
	if err != nil || second.Spec.CurrentKey != first.Spec.NextKey || second.Spec.RotatedAt == nil || second.Revision <= first.Revision {
		t.Fatalf("%+v, %v", second, err)
	}
	checkHost(t, h, second)
	var mu sync.Mutex
	before := map[string]string{} // current key by next key
	for range 8 {
		wg.Go(func() {
			k, err := h.Rotate(t.Context())
			if errs.Is(err, errs.Conflict) {
				return // another one was faster
			}
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			before[k.Spec.NextKey] = k.Spec.CurrentKey
		})
	}
	wg.Wait()
	last, err := h.Ensure(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	checkHost(t, h, last)
	steps := 0
	for at := last.Spec.NextKey; at != second.Spec.NextKey; steps++ {
		previous, ok := before[at]
		if !ok {
			t.Fatalf("%s became the next key by no rotation that succeeded", at)
		}
		at = previous
	}
	if steps != len(before) {
		t.Errorf("%d rotations succeeded, and the key changed %d times", len(before), steps)
	}
	other := &HostKeys{Store: store, Sealer: schema.NewSealer(filepath.Join(t.TempDir(), "other"))}
	if _, _, err := other.Signers(last); !errs.Is(err, errs.FailedPrecondition) {
		t.Errorf("a server with another key of secrets: %v", err)
	}
}

// dying is a store whose server dies before its next write, or after it.
type dying struct {
	entity.Store
	after bool
}

func (d dying) Txn(ctx context.Context, req entity.TxnRequest) (entity.TxnResult, error) {
	if d.after {
		if _, err := d.Store.Txn(ctx, req); err != nil {
			return entity.TxnResult{}, err
		}
	}
	return entity.TxnResult{}, errs.New(errs.Unavailable, "the server died")
}

// TestHostKeysDiesAroundAWrite: whenever a server dies in a rotation, the next one
// shows the key that was current, or the one of which clients were told.
func TestHostKeysDiesAroundAWrite(t *testing.T) {
	store, sealer := pgtest.Store(t, api.Kinds()...), schema.NewSealer(filepath.Join(t.TempDir(), "key"))
	h := &HostKeys{Store: store, Sealer: sealer}
	for _, after := range []bool{false, true} {
		if _, err := (&HostKeys{Store: dying{store, after}, Sealer: sealer}).Ensure(t.Context()); !errs.Is(err, errs.Unavailable) {
			t.Fatal(err)
		}
	}
	for _, after := range []bool{false, true} {
		old, err := h.Ensure(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := (&HostKeys{Store: dying{store, after}, Sealer: sealer}).Rotate(t.Context()); !errs.Is(err, errs.Unavailable) {
			t.Fatal(err)
		}
		k, err := h.Ensure(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		checkHost(t, h, k)
		want := map[bool]string{false: old.Spec.CurrentKey, true: old.Spec.NextKey}[after]
		if k.Spec.CurrentKey != want {
			t.Errorf("after the write: %v: the current key is %s", after, k.Spec.CurrentKey)
		}
	}
}
