package workspace

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"regexp"
	"strings"
	"time"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
)

// startTimeout is how long the creation of a session waits for its start.
const startTimeout = time.Minute

// session is a session in an answer.
type session struct {
	ID        string    `json:"session_id"`
	Sandbox   string    `json:"sandbox_id"`
	State     string    `json:"state"`
	CreatedAt time.Time `json:"created_at"`
}

func sessionOf(sb *sandbox.Sandbox) session {
	return session{sb.Labels[labelSession], string(sb.ID), string(sb.Status.Phase), sb.CreatedAt}
}

var (
	idRE   = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)
	nameRE = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,50}[a-z0-9])?$`)
)

// sandboxName returns the name of the sandbox of a session. One that cannot be
// part of a name is replaced by its hash.
func sandboxName(id string) (string, error) {
	switch {
	case !idRE.MatchString(id):
		return "", errs.New(errs.InvalidArgument, "%q is no id of a session: 1 to 128 of a-z, A-Z, 0-9 and . _ -, the first a letter or digit", id)
	case nameRE.MatchString(id) && !strings.HasPrefix(id, "x-"):
		return "se-" + id, nil
	}
	h := sha256.Sum256([]byte(id))
	return "se-x-" + hex.EncodeToString(h[:20]), nil
}

// find returns the sandbox of the session that a request names. NotFound if there
// is none.
func (c *call) find(id string) (*sandbox.Sandbox, error) {
	name, err := sandboxName(id)
	if err != nil {
		return nil, err
	}
	page, err := c.store.List(c.ctx, entity.Query{Kind: sandbox.KindSandbox, Name: name, Labels: map[string]string{labelSession: id}, Limit: 1})
	if err != nil {
		return nil, err
	}
	if len(page.Records) == 0 {
		return nil, errs.New(errs.NotFound, "there is no session %q", id).WithHint("create it: POST %s/session/%s", Prefix, id)
	}
	return entity.Decode[sandbox.Sandbox](&page.Records[0])
}

func createSession(c *call, w http.ResponseWriter, r *http.Request) error {
	id := r.PathValue("id")
	name, err := sandboxName(id)
	if err != nil {
		return err
	}
	sb, err := c.run(id, name)
	if errs.Is(err, errs.AlreadyExists) {
		// The sandbox of a session that has ended makes room for a new one.
		if old, ferr := c.find(id); ferr == nil && old.Status.Phase.Ended() {
			if derr := c.sandboxes.Delete(c.ctx, &sandbox.SandboxRequest{Sandbox: old.GetID()}); derr != nil && !errs.Is(derr, errs.NotFound) {
				return derr
			}
			sb, err = c.run(id, name)
		}
	}
	if errs.Is(err, errs.AlreadyExists) {
		return errs.New(errs.AlreadyExists, "there is a session %q", id).WithHint("use it, or delete it: DELETE %s/session/%s", Prefix, id)
	}
	if err != nil {
		return err
	}
	c.keepPool()
	if sb.Status.Phase != sandbox.SandboxPhaseRunning {
		wctx, cancel := context.WithTimeout(c.ctx, startTimeout)
		defer cancel()
		resp, err := c.sandboxes.Wait(wctx, &sandbox.WaitRequest{Sandbox: sb.GetID(), Until: sandbox.WaitUntilRunning})
		if err != nil {
			return err
		}
		if sb, err = entity.Decode[sandbox.Sandbox](&resp.Sandbox); err != nil {
			return err
		}
	}
	if sb.Status.Phase.Ended() {
		return errs.New(errs.FailedPrecondition, "session %q ended at its start: %s", id, sb.Status.Message)
	}
	return answer(w, http.StatusCreated, sessionOf(sb))
}

// run creates the sandbox of a session.
func (c *call) run(id, name string) (*sandbox.Sandbox, error) {
	req := &sandbox.RunRequest{
		Project: c.project, Name: name, Labels: map[string]string{labelKind: "se", labelSession: id}, Template: Template, Idle: optional(true),
		CPUMillis: optional(c.settings.CPUMillis), MemoryBytes: optional(c.settings.MemoryBytes),
	}
	if !c.settings.AllowNetwork {
		req.Egress = &sandbox.Egress{Mode: sandbox.EgressModeNone}
	}
	resp, err := c.sandboxes.Run(c.ctx, req)
	if err != nil {
		return nil, err
	}
	return entity.Decode[sandbox.Sandbox](&resp.Sandbox)
}

// keepPool makes the project keep as many warm sandboxes as the settings say, at
// the first session in it since the start of the server. A larger pool stays.
func (c *call) keepPool() {
	if c.settings.PoolSize == 0 {
		return
	}
	if _, seen := c.pools.LoadOrStore(c.project, true); seen {
		return
	}
	err := func() error {
		page, err := c.store.List(c.ctx, entity.Query{Kind: sandbox.KindWarmPool, Name: Template, Limit: 1})
		if err != nil {
			return err
		}
		if len(page.Records) > 0 {
			p, err := entity.Decode[sandbox.WarmPool](&page.Records[0])
			if err != nil || p.Spec.Min >= c.settings.PoolSize {
				return err
			}
		}
		_, err = c.templates.SetPool(c.ctx, &sandbox.SetPoolRequest{Project: c.project, Template: Template, Min: &c.settings.PoolSize})
		return err
	}()
	if err != nil {
		c.pools.Delete(c.project)
		c.logger.Warn("sessions start without a warm pool", "project", c.project, "error", err)
	}
}

func deleteSession(c *call, w http.ResponseWriter, r *http.Request) error {
	sb, err := c.find(r.PathValue("id"))
	if err != nil {
		return err
	}
	if err := c.sandboxes.Delete(c.ctx, &sandbox.SandboxRequest{Sandbox: sb.GetID()}); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func listSessions(c *call, w http.ResponseWriter, _ *http.Request) error {
	out := struct {
		Sessions []session `json:"sessions"`
	}{[]session{}}
	q := entity.Query{Kind: sandbox.KindSandbox, Labels: map[string]string{labelKind: "se"}, Limit: 500}
	for {
		page, err := c.store.List(c.ctx, q)
		if err != nil {
			return err
		}
		for i := range page.Records {
			sb, err := entity.Decode[sandbox.Sandbox](&page.Records[i])
			if err != nil {
				return err
			}
			out.Sessions = append(out.Sessions, sessionOf(sb))
		}
		if q.Cursor = page.Cursor; q.Cursor == "" {
			return answer(w, http.StatusOK, out)
		}
	}
}
