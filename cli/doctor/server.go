package doctor

import (
	"context"
	"time"

	"miren.dev/runtime/api/server"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/pkg/errs"
)

// serverTimeout bounds the checks that the server makes.
const serverTimeout = 30 * time.Second

// serverFindings returns the checks of the command's server. With optional, it
// is no failure if no server runs on this machine.
func serverFindings(ctx context.Context, e *command.Env, h *Host, optional bool) []Finding {
	ctx, cancel := context.WithTimeout(ctx, serverTimeout)
	defer cancel()
	named := func(f Finding) []Finding {
		f.Name = "server"
		return []Finding{f}
	}
	c, err := e.Connect(ctx)
	if err != nil {
		if t, terr := e.Target(); optional && (errs.Is(terr, errs.Unavailable) || terr == nil && t.Local) {
			return named(Warning(errs.HintOf(err), "%v", err))
		}
		return named(Failure(errs.HintOf(err), "%v", err))
	}
	cl := server.NewServerClient(c)
	st, err := cl.Status(ctx)
	if err != nil {
		return named(Failure(errs.HintOf(err), "%v", err))
	}
	h.Running = st.StateDir == h.Config.StateDir
	findings := named(Good("runtime %s answers (%s)", st.Version, st.Instance))
	if !st.Ready {
		findings = named(Failure("`r server status` shows which", "it answers, but some parts do not work"))
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
