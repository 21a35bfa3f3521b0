package network

import (
	"context"
	"testing"

	"miren.dev/runtime/pkg/egress"
	"miren.dev/runtime/testsupport/leakcheck"
)

func benchManager(b *testing.B) *Manager {
	m := New(Config{Instance: leakcheck.Installation(b)})
	if err := m.Start(b.Context()); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := m.Stop(context.Background()); err != nil {
			b.Error(err)
		}
	})
	return m
}

// BenchmarkAttach connects sandboxes, and removes them untimed.
func BenchmarkAttach(b *testing.B) {
	for name, o := range map[string]Options{"bridge": {Bridge: true, Policy: egress.Open()}, "loopback": {}} {
		b.Run(name, func(b *testing.B) {
			m := benchManager(b)
			for b.Loop() {
				if _, err := m.Attach(b.Context(), "a", o); err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				if err := m.Detach(b.Context(), "a"); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
		})
	}
}

// BenchmarkTake gives parked connections to sandboxes.
func BenchmarkTake(b *testing.B) {
	m := benchManager(b)
	m.cfg.Parked = 1
	for b.Loop() {
		b.StopTimer()
		if err := m.park(b.Context()); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		if _, err := m.Attach(b.Context(), "a", Options{Bridge: true, Policy: egress.Open()}); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		if err := m.Detach(b.Context(), "a"); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}

// BenchmarkSetPolicy opens a closed sandbox, and closes it.
func BenchmarkSetPolicy(b *testing.B) {
	m := benchManager(b)
	if _, err := m.Attach(b.Context(), "a", Options{Bridge: true, Policy: egress.Closed()}); err != nil {
		b.Fatal(err)
	}
	defer func() {
		if err := m.Detach(b.Context(), "a"); err != nil {
			b.Error(err)
		}
	}()
	for b.Loop() {
		for _, p := range []egress.Policy{egress.Open(), egress.Closed()} {
			if err := m.SetPolicy(b.Context(), "a", p); err != nil {
				b.Fatal(err)
			}
		}
	}
}
