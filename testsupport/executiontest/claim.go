package executiontest

import (
	"fmt"
	"strings"
	"testing"

	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/pkg/errs"
)

func testConfigure(t *testing.T, e *Env) {
	within(t, "identity", func(t *testing.T) {
		s := e.spec("warm")
		s.Idle, s.Network, s.Env = true, execution.NetworkBridge, []string{"FROM=spec", "KEPT=1"}
		e.Start(t, s)
		if out := e.Output(t, s.ID, guest("id")); !strings.HasPrefix(out, "uid=0 gid=0 dir=/home/app host=warm ") {
			t.Errorf("before the claim: %q", out)
		}
		i := execution.Identity{
			Claim: "claim-1", Hostname: "agent-7", Env: []string{"FROM=claim", "SECRET=s3cret words"}, WorkDir: "/tmp", User: "app",
			CPUMillis: 1000, MemoryBytes: 96 << 20, PIDs: 32,
		}
		if e.Lacks.ClaimLimits {
			if err := e.Driver.Configure(t.Context(), s.ID, i); !refused(err) {
				t.Errorf("a claim with lower limits: %v", err)
			}
			i.CPUMillis, i.MemoryBytes = 0, 0
		}
		other := i
		other.Claim, other.Env = "claim-2", []string{"FROM=other"}
		check := func(when string) {
			t.Helper()
			for range 2 { // a repetition after an answer that was lost
				if err := e.Driver.Configure(t.Context(), s.ID, i); err != nil {
					t.Errorf("%s: %v", when, err)
				}
			}
			if err := e.Driver.Configure(t.Context(), s.ID, other); !errs.Is(err, errs.FailedPrecondition) {
				t.Errorf("%s: a second claim: %v", when, err)
			}
			if out := e.Output(t, s.ID, guest("id")); !strings.HasPrefix(out, "uid=1000 gid=1000 dir=/tmp host=agent-7 ") {
				t.Errorf("%s: %q", when, out)
			}
			out := "\n" + e.Output(t, s.ID, guest("env"))
			for _, want := range []string{"FROM=claim", "SECRET=s3cret words", "KEPT=1", "PATH=/bin"} {
				if !strings.Contains(out, "\n"+want+"\n") {
					t.Errorf("%s: no %s in %q", when, want, out)
				}
			}
			if out := e.Output(t, s.ID, guest("read", "/etc/hosts")); !strings.Contains(out, "\tagent-7\n") || strings.Contains(out, "\twarm\n") {
				t.Errorf("%s: /etc/hosts: %q", when, out)
			}
			var started, alive, threads int
			got := e.Output(t, s.ID, guest("forks", "100"))
			if _, err := fmt.Sscanf(got, "started %d alive %d threads %d", &started, &alive, &threads); err != nil || started >= 64 || alive >= 32 {
				t.Errorf("%s: of 100 processes with a limit of 32: %q, %v", when, got, err)
			}
		}
		check("at once")
		e.Driver = e.Renew(t)
		check("after a restart of the server")
	})
	within(t, "memory", func(t *testing.T) {
		if e.Lacks.ClaimLimits {
			return // refused, as above
		}
		s := e.spec("warm-memory")
		s.Idle, s.MemoryBytes = true, 512<<20
		e.Start(t, s)
		if err := e.Driver.Configure(t.Context(), s.ID, execution.Identity{Claim: "c", MemoryBytes: 64 << 20}); err != nil {
			t.Fatal(err)
		}
		p, err := e.Driver.Exec(t.Context(), s.ID, guest("memory", "256", "60"))
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		if exit := e.Ended(t, s.ID); exit.Cause != execution.CauseOOM {
			t.Errorf("256 MiB with a limit of 64: %+v", exit)
		}
	})
	within(t, "refused", func(t *testing.T) {
		s := e.spec("warm-bad")
		s.Idle = true
		e.Start(t, s)
		for name, i := range map[string]execution.Identity{
			"no claim":         {},
			"long claim":       {Claim: strings.Repeat("x", 64)},
			"host name":        {Claim: "c", Hostname: "a b"},
			"variable":         {Claim: "c", Env: []string{"=x"}},
			"relative":         {Claim: "c", WorkDir: "tmp"},
			"more memory":      {Claim: "c", MemoryBytes: s.MemoryBytes + 1},
			"more CPU":         {Claim: "c", CPUMillis: s.CPUMillis + 1},
			"more processes":   {Claim: "c", PIDs: s.PIDs + 1},
			"negative":         {Claim: "c", PIDs: -1},
			"zero in variable": {Claim: "c", Env: []string{"A=\x00"}},
		} {
			if err := e.Driver.Configure(t.Context(), s.ID, i); !errs.Is(err, errs.InvalidArgument) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if err := e.Driver.Configure(t.Context(), s.ID, execution.Identity{Claim: "c"}); err != nil {
			t.Errorf("a claim after refused ones: %v", err)
		}
		e.Start(t, e.spec("busy", "sleep"))
		if err := e.Driver.Configure(t.Context(), "busy", execution.Identity{Claim: "c"}); !errs.Is(err, errs.FailedPrecondition) {
			t.Errorf("a sandbox with a main process: %v", err)
		}
		if err := e.Driver.Configure(t.Context(), "unknown", execution.Identity{Claim: "c"}); !errs.Is(err, errs.NotFound) {
			t.Errorf("no sandbox: %v", err)
		}
	})
}
