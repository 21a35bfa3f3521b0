package executiontest

import (
	"testing"

	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/pkg/egress"
	"miren.dev/runtime/pkg/errs"
)

func testEgress(t *testing.T, e *Env) {
	closed, bad := egress.Closed(), egress.Policy{Mode: "some"}
	if e.Lacks.Policies {
		testNoPolicies(t, e)
		return
	}
	within(t, "bridge", func(t *testing.T) {
		s := e.spec("egress", "/bin/guest", "sleep")
		s.Network, s.Egress = execution.NetworkBridge, &closed
		e.Start(t, s)
		list, err := egress.Parse("list", []string{"example.com", "203.0.113.0/24"}, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range []egress.Policy{egress.Open(), list, closed} {
			if err := e.Driver.SetEgress(t.Context(), s.ID, p); err != nil {
				t.Errorf("%v: %v", p, err)
			}
		}
		if err := e.Driver.SetEgress(t.Context(), s.ID, bad); !errs.Is(err, errs.InvalidArgument) {
			t.Errorf("a policy without sense: %v", err)
		}
		if log, err := e.Driver.EgressLog(t.Context(), s.ID); err != nil || len(log) > 0 {
			t.Errorf("EgressLog = %v, %v", log, err)
		}
	})
	within(t, "none", func(t *testing.T) {
		s := e.spec("no-egress", "/bin/guest", "sleep")
		e.Start(t, s)
		if err := e.Driver.SetEgress(t.Context(), s.ID, closed); !errs.Is(err, errs.FailedPrecondition) {
			t.Errorf("without a network: %v", err)
		}
	})
	within(t, "unknown", func(t *testing.T) {
		if err := e.Driver.SetEgress(t.Context(), "unknown", closed); !errs.Is(err, errs.NotFound) {
			t.Errorf("SetEgress: %v", err)
		}
		if _, err := e.Driver.EgressLog(t.Context(), "unknown"); !errs.Is(err, errs.NotFound) {
			t.Errorf("EgressLog: %v", err)
		}
		s := e.spec("bad-egress", "/bin/guest", "sleep")
		s.Network, s.Egress = execution.NetworkBridge, &bad
		if _, err := e.Driver.Ensure(t.Context(), s); !errs.Is(err, errs.InvalidArgument) {
			t.Errorf("Ensure with a policy without sense: %v", err)
		}
	})
}

// testNoPolicies tests a driver whose sandboxes with a network may reach whatever that permits.
func testNoPolicies(t *testing.T, e *Env) {
	closed, open, bad := egress.Closed(), egress.Open(), egress.Policy{Mode: "some"}
	within(t, "bridge", func(t *testing.T) {
		s := e.spec("egress", "/bin/guest", "sleep")
		s.Network, s.Egress = execution.NetworkBridge, &closed
		if _, err := e.Driver.Ensure(t.Context(), s); !refused(err) {
			t.Errorf("a sandbox with a policy: %v", err)
		}
		s.Egress = &open
		e.Start(t, s)
		if err := e.Driver.SetEgress(t.Context(), s.ID, open); err != nil {
			t.Errorf("the open policy: %v", err)
		}
		if err := e.Driver.SetEgress(t.Context(), s.ID, closed); !refused(err) {
			t.Errorf("another policy: %v", err)
		}
		if err := e.Driver.SetEgress(t.Context(), s.ID, bad); !errs.Is(err, errs.InvalidArgument) {
			t.Errorf("a policy without sense: %v", err)
		}
		if log, err := e.Driver.EgressLog(t.Context(), s.ID); !refused(err) {
			t.Errorf("EgressLog = %v, %v", log, err)
		}
	})
	within(t, "unknown", func(t *testing.T) {
		if err := e.Driver.SetEgress(t.Context(), "unknown", open); !errs.Is(err, errs.NotFound) {
			t.Errorf("SetEgress: %v", err)
		}
		if _, err := e.Driver.EgressLog(t.Context(), "unknown"); !errs.Is(err, errs.NotFound) {
			t.Errorf("EgressLog: %v", err)
		}
	})
}
