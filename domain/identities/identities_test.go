package identities

import (
	"testing"
	"time"

	"miren.dev/runtime/api"
	"miren.dev/runtime/api/core"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/testsupport/pgtest"
)

const (
	oldSerial = "5f2b9c0a7d1e4c3b8a6f0e9d2c1b4a7f" // serial number of a certificate that was never recorded
	serialA   = "a1"
	serialB   = "b2"
)

func issue(t *testing.T, s *Service, identity, serial string, end time.Time) {
	t.Helper()
	if _, err := s.Record(t.Context(), Issued{Identity: identity, Serial: serial, Roles: []string{"admin"}, By: "root", ExpiresAt: end}); err != nil {
		t.Fatal(err)
	}
}

// current returns the store's state.
func current(t *testing.T, s *Service) *Revocations {
	t.Helper()
	all, _, err := entity.List[core.ClientCertificate](t.Context(), s.Store, entity.Query{})
	if err != nil {
		t.Fatal(err)
	}
	r := NewRevocations()
	for _, c := range all {
		r.Put(c)
	}
	return r
}

func wantRevoked(t *testing.T, r *Revocations, identity, serial string, want bool) {
	t.Helper()
	if err := r.Check(identity, serial); errs.Is(err, errs.Unauthenticated) != want {
		t.Errorf("%s %s: %v", identity, serial, err)
	}
}

// TestRevokeNamesCertificates: a serial number revokes that certificate alone;
// an identity revokes all of its certificates, including those without a
// record, but none that is issued later.
func TestRevokeNamesCertificates(t *testing.T) {
	s := &Service{Store: pgtest.Store(t, api.Kinds()...)}
	later := time.Now().Add(time.Hour)
	issue(t, s, "alice", serialA, later)
	issue(t, s, "alice", serialB, later)
	if certs, err := s.Revoke(t.Context(), "00:A1", "root"); err != nil || len(certs) != 1 || certs[0].Spec.RevokedBy != "root" {
		t.Fatal(certs, err)
	}
	r := current(t, s)
	wantRevoked(t, r, "alice", serialA, true)
	wantRevoked(t, r, "alice", serialB, false)
	wantRevoked(t, r, "alice", oldSerial, false)

	if certs, err := s.Revoke(t.Context(), "alice", "root"); err != nil || len(certs) != 3 {
		t.Fatal(certs, err)
	}
	again, err := s.Revoke(t.Context(), "alice", "bob")
	if err != nil || len(again) != 3 || again[0].Spec.RevokedBy != "root" {
		t.Fatal(again, err)
	}
	issue(t, s, "alice", "c3", later)
	r = current(t, s)
	wantRevoked(t, r, "alice", serialA, true)
	wantRevoked(t, r, "alice", serialB, true)
	wantRevoked(t, r, "alice", oldSerial, true)
	wantRevoked(t, r, "alice", "c3", false)
	wantRevoked(t, r, "bob", oldSerial, false)
}

// TestUnrecordedSerialIsRevoked: a serial number that the store has never seen.
func TestUnrecordedSerialIsRevoked(t *testing.T) {
	s := &Service{Store: pgtest.Store(t, api.Kinds()...)}
	if certs, err := s.Revoke(t.Context(), oldSerial, "root"); err != nil || len(certs) != 1 || certs[0].Spec.Identity != "" {
		t.Fatal(certs, err)
	}
	r := current(t, s)
	wantRevoked(t, r, "alice", oldSerial, true)
	wantRevoked(t, r, "alice", serialA, false)
}

// TestLongExpiredCertificatesAreForgotten: their entities would grow without bound.
func TestLongExpiredCertificatesAreForgotten(t *testing.T) {
	s := &Service{Store: pgtest.Store(t, api.Kinds()...)}
	issue(t, s, "alice", serialA, time.Now().Add(-keepExpired-time.Hour))
	issue(t, s, "alice", serialB, time.Now().Add(-time.Hour))
	issue(t, s, "alice", "c3", time.Now().Add(time.Hour))
	all, _, err := entity.List[core.ClientCertificate](t.Context(), s.Store, entity.Query{})
	if err != nil || len(all) != 2 {
		t.Fatal(all, err)
	}
	for _, c := range all {
		if c.Spec.Serial == serialA {
			t.Error("it is still recorded")
		}
	}
}

// TestRevocationIsFinal: an older state that arrives late changes nothing.
func TestRevocationIsFinal(t *testing.T) {
	now := time.Now()
	valid, revoked := core.NewClientCertificate(), core.NewClientCertificate()
	valid.Spec = core.ClientCertificateSpec{Identity: "alice", Serial: serialA}
	revoked.Spec = core.ClientCertificateSpec{Identity: "alice", Serial: serialA, RevokedAt: &now}
	r := NewRevocations()
	if r.Put(valid) || !r.Put(revoked) || r.Put(revoked) || r.Put(valid) {
		t.Error("Put does not tell what is new")
	}
	wantRevoked(t, r, "alice", serialA, true)
}
