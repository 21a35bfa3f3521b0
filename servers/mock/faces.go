package mock

import (
	"context"
	"encoding/json"
	"net/http"
	"path/filepath"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/version"
	"miren.dev/runtime/servers/api"
	"miren.dev/runtime/servers/e2b"
	"miren.dev/runtime/servers/rest"
	"miren.dev/runtime/servers/workspace"
)

// About is the answer to GET /mock, which needs no key.
type About struct {
	Mock    bool   `json:"mock"`
	Message string `json:"message"`
	Version string `json:"version"`
}

// Message says what the server is.
const Message = "This is a mock: it executes nothing. Answers of code and commands are made up; sandboxes are records."

// faces mounts the faces of the real server.
func (p *plane) faces(tokens []byte, settings workspace.Settings) error {
	a := api.New(api.Config{
		Authenticate: p.keys.Authenticate, Local: p.rpc.Local, Ready: p.ready, Logger: p.logger,
		Rate: p.s.cfg.Rate, Burst: p.s.cfg.Burst, RateOf: p.keys.Rate,
		Header: func(h http.Header) { h.Set(Header, "true") },
	})
	p.s.api = a
	rest.Mount(a)
	workspace.Mount(a, settings, p.logger)
	a.Handle("mock", "GET /mock", http.HandlerFunc(about))
	face, err := e2b.New(e2b.Config{
		Authenticate: func(ctx context.Context, key string) (*e2b.Caller, error) {
			c, err := a.Authenticate(ctx, key)
			if err != nil {
				return nil, err
			}
			return &e2b.Caller{Conn: c.Client, Project: c.Project(), Release: c.Release}, nil
		},
		Guest: p.rpc.Local(e2b.GuestIdentity), Key: tokens, Uploads: filepath.Join(p.s.dir, "uploads"), Logger: p.logger,
	})
	if err != nil {
		return err
	}
	a.Intercept("e2b", e2b.Matches, face)
	p.e2b = face
	return nil
}

func about(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(About{Mock: true, Message: Message, Version: version.Get().Version}) // the client may have gone
}

// ready returns why the server cannot do its work now.
func (p *plane) ready() error {
	st := p.informers.Status()
	if !st.Synced {
		return errs.New(errs.Unavailable, "the server has not read its store yet")
	}
	return st.Err
}

// serve serves the listener until ctx ends.
func (p *plane) serve(ctx context.Context) error {
	p.e2b.Start()
	err := p.s.api.Serve(ctx, p.s.l)
	<-p.closed
	p.e2b.Close()
	return err
}
