package runsc_test

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/pkg/egress"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/testsupport/runsctest"
)

// TestSnapshotHasTheNetworkPolicy: a sandbox that is resumed, and its fork, have the
// policy that it had last, unless another is named.
func TestSnapshotHasTheNetworkPolicy(t *testing.T) {
	m := machine{runsctest.New(t)}
	defer m.deleteSnapshots(t)
	s := m.spec("limited", "sleep")
	s.Network = execution.NetworkBridge
	m.ensure(t, s)
	list, err := egress.Parse("list", []string{"example.com"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Driver.SetEgress(t.Context(), s.ID, list); err != nil {
		t.Fatal(err)
	}
	m.snapshot(t, s.ID, "one", false)
	if err := m.Driver.SetEgress(t.Context(), s.ID, egress.Open()); !errs.Is(err, errs.FailedPrecondition) {
		t.Errorf("SetEgress of a paused sandbox: %v", err)
	}
	closed := egress.Closed()
	for _, c := range []struct {
		id     string
		egress *egress.Policy
		want   egress.Policy
	}{{s.ID, nil, list}, {"fork", nil, list}, {"closed-fork", &closed, closed}} {
		m.ensure(t, execution.Spec{ID: c.id, Network: execution.NetworkBridge, MemoryBytes: s.MemoryBytes, CPUMillis: s.CPUMillis, Restore: "one", Egress: c.egress})
		if got, ok := m.Driver.Policy(c.id); !ok || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s has the policy %v, %v; want %v", c.id, got, ok, c.want)
		}
	}
	for _, id := range []string{s.ID, "fork", "closed-fork"} {
		if err := m.Driver.Delete(t.Context(), id); err != nil {
			t.Error(err)
		}
	}
}

// TestAuthorityOfInjectedSecrets: a sandbox trusts the proxy's authority from the first secret that is injected on, also
// when it is resumed, and so does its fork; others do not.
func TestAuthorityOfInjectedSecrets(t *testing.T) {
	m := machine{runsctest.New(t)}
	defer m.deleteSnapshots(t)
	host, err := egress.ParseRule("api.example.com")
	if err != nil {
		t.Fatal(err)
	}
	policy := egress.Policy{Mode: egress.List, Inject: []egress.Injection{{Host: host, Secret: "proj/key", Header: "Authorization", Format: "{}"}}}
	s := m.spec("trusts", "sleep")
	s.Network, s.Egress = execution.NetworkBridge, &policy
	if _, err := m.Driver.Ensure(t.Context(), s); !errs.Is(err, errs.FailedPrecondition) {
		t.Errorf("without a bundle: %v", err)
	}
	const own = "certificates of the host\n"
	m.CABundle = filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(m.CABundle, []byte(own), 0o644); err != nil {
		t.Fatal(err)
	}
	m.Restart(t)
	s.Egress = nil
	m.ensure(t, s)
	read := func(id string) string {
		t.Helper()
		return m.Env().Output(t, id, guest("read", "/run/runtime/ca-certificates.crt"))
	}
	if got := read(s.ID); got != own {
		t.Errorf("before: %q", got)
	}
	for range 2 {
		if err := m.Driver.SetEgress(t.Context(), s.ID, policy); err != nil {
			t.Fatal(err)
		}
	}
	with := read(s.ID)
	if !strings.HasPrefix(with, own) || strings.Count(with, "BEGIN CERTIFICATE") != 1 || strings.Contains(with, "PRIVATE") {
		t.Errorf("with a secret: %q", with)
	}
	m.snapshot(t, s.ID, "image", false)
	s.Restore, s.Egress = "image", &policy
	m.ensure(t, s)
	m.ensure(t, execution.Spec{ID: "fork", Network: execution.NetworkBridge, MemoryBytes: s.MemoryBytes, CPUMillis: s.CPUMillis, Restore: "image"})
	open := egress.Open()
	m.ensure(t, execution.Spec{ID: "open-fork", Network: execution.NetworkBridge, MemoryBytes: s.MemoryBytes, CPUMillis: s.CPUMillis, Restore: "image", Egress: &open})
	for id, want := range map[string]string{s.ID: with, "fork": with, "open-fork": own} {
		if got := read(id); got != want {
			t.Errorf("%s: %q, want %q", id, got, want)
		}
		m.delete(t, id)
	}
}
