package doctor

import (
	"context"
	"time"

	"miren.dev/runtime/api/server"
	"miren.dev/runtime/pkg/errs"
)

// askTimeout bounds the server's own checks.
const askTimeout = 30 * time.Second

// serverFindings asks the server, if there is one.
func serverFindings(ctx context.Context, m *machine) []Finding {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	named := func(f Finding) []Finding {
		f.Name = "server"
		return []Finding{f}
	}
	c, err := m.env.Connect(ctx)
	if err != nil {
		if t, terr := m.env.Target(); terr != nil || t.Local {
			return named(warn("start it with `r server start`", "%v", err))
		}
		return named(fail(errs.HintOf(err), "%v", err))
	}
	cl := server.NewServerClient(c)
	st, err := cl.Status(ctx)
	if err != nil {
		return named(fail(errs.HintOf(err), "%v", err))
	}
	m.running = st.StateDir == m.cfg.StateDir
	findings := named(ok("runtime %s answers (%s)", st.Version, st.Instance))
	if !st.Ready {
		findings = named(fail("`r server status` says which part", "it answers, but not everything works"))
	}
	resp, err := cl.Doctor(ctx)
	if err != nil {
		return append(findings, Finding{Name: "server checks", Level: Fail, Found: err.Error(), Advice: errs.HintOf(err)})
	}
	for _, c := range resp.Checks {
		findings = append(findings, Finding{Name: c.Name, Level: Level(c.Level), Found: c.Found, Advice: c.Advice})
	}
	return findings
}
