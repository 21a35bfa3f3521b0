// Package previews has the operations on previews. A preview is a port of a
// sandbox that the ingress serves, for everybody or for those with a token.
//
//	Create  makes or changes one
//	Sign    a URL that opens it for a while
//	Delete  ends it
//	Dial    connects to its port, for the ingress
//	Wake    resumes its sandbox, for the ingress
//
// Nothing secret is stored: tokens are signed with a key that is derived from a
// secret of the installation, and a preview has the public key.
package previews

import (
	"bytes"
	"context"
	"time"

	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/domain/sandboxes"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/preview"
)

// DefaultTTL is how long a signed URL is valid unless something else is asked for.
const DefaultTTL = time.Hour

// Service is the operations on the previews of one store. It is safe for
// concurrent use.
type Service struct {
	Store entity.Store
	Key   preview.Key
	// URL returns the URL of a host below the ingress's first domain, "" if there
	// is no ingress.
	URL func(label string) string
	// DialSandbox connects to a port of a sandbox, on whatever address a process
	// listens.
	DialSandbox func(ctx context.Context, sid id.Sandbox, port int) (sandboxes.Conn, error)
	// WakeSandbox resumes a sandbox if it is paused.
	WakeSandbox func(ctx context.Context, sid id.Sandbox) error
}

// Request describes a preview.
type Request struct {
	Sandbox id.Sandbox
	Port    int // 0: every port that has no preview of its own
	Public  bool
	TTL     time.Duration // 0: as long as the sandbox exists
}

// maxTries bounds how often Create meets a preview that it did not find.
const maxTries = 10

// Create makes a preview, or changes the one that the sandbox has at that port.
// FailedPrecondition if the sandbox has ended or waits in a warm pool;
// ResourceExhausted if it has too many previews.
func (s *Service) Create(ctx context.Context, req Request) (*sandbox.Preview, error) {
	sb, err := entity.Get[sandbox.Sandbox](ctx, s.Store, req.Sandbox)
	if err != nil {
		return nil, err
	}
	switch {
	case sb.Status.Phase.Ended() || sb.Spec.Desired == sandbox.DesiredStateStopped:
		return nil, errs.New(errs.FailedPrecondition, "sandbox %s has ended", sb.ID)
	case sb.Spec.WarmPool != "":
		return nil, errs.New(errs.FailedPrecondition, "sandbox %s waits in a warm pool, and is nobody's", sb.ID)
	}
	spec := sandbox.PreviewSpec{Sandbox: sb.GetID(), Port: int64(req.Port), Public: req.Public, Key: s.Key.Public()}
	if req.TTL > 0 {
		end := time.Now().Add(req.TTL).UTC().Truncate(time.Millisecond)
		spec.ExpiresAt = &end
	}
	for range maxTries {
		p, err := s.find(ctx, sb, req.Port)
		if err != nil {
			return nil, err
		}
		if p != nil {
			p, err = entity.ModifySpec(ctx, s.Store, p.GetID(), func(p *sandbox.Preview) error { p.Spec = spec; return nil })
		} else {
			p = sandbox.NewPreview()
			p.Project, p.Name, p.Spec = sb.Project, preview.Label(string(sb.ID), req.Port), spec
			err = entity.Create(ctx, s.Store, p)
		}
		if !errs.Is(err, errs.NotFound) && !errs.Is(err, errs.AlreadyExists) {
			return p, err
		}
		// Another call made or deleted it meanwhile.
		if _, err := entity.Get[sandbox.Sandbox](ctx, s.Store, sb.ID); err != nil {
			return nil, err
		}
	}
	return nil, errs.New(errs.Conflict, "the preview of port %d of %s is changed by others", req.Port, sb.ID).WithHint("try again")
}

// find returns the preview of a port, nil if there is none and there may be one
// more. If there are too many it deletes those that have ended.
func (s *Service) find(ctx context.Context, sb *sandbox.Sandbox, port int) (*sandbox.Preview, error) {
	list, _, err := entity.List[sandbox.Preview](ctx, s.Store, entity.Where(sandbox.PreviewAttrSandbox, string(sb.ID)))
	if err != nil {
		return nil, err
	}
	for _, p := range list {
		if p.Spec.Port == int64(port) {
			return p, nil
		}
	}
	if len(list) < sandbox.MaxPreviews {
		return nil, nil
	}
	removed := false
	for _, p := range list {
		if !expired(p) {
			continue
		}
		if err := s.Delete(ctx, p.GetID()); err != nil && !errs.Is(err, errs.NotFound) {
			return nil, err
		}
		removed = true
	}
	if removed {
		return nil, nil
	}
	return nil, errs.New(errs.ResourceExhausted, "sandbox %s has %d previews, which is the most", sb.ID, len(list)).
		WithHint("delete some (`r preview delete`), or make one of every port")
}

// expired reports whether a preview has ended.
func expired(p *sandbox.Preview) bool {
	return p.Spec.ExpiresAt != nil && !time.Now().Before(*p.Spec.ExpiresAt)
}

// Token returns the token that opens a preview as long as it exists; "" if it is
// public.
func (s *Service) Token(p *sandbox.Preview) string {
	if p.Spec.Public {
		return ""
	}
	return s.Key.Sign(string(p.ID), time.Time{})
}

// Sign returns a URL that opens a preview until a time.
func (s *Service) Sign(ctx context.Context, pid id.Preview, ttl time.Duration) (string, time.Time, error) {
	p, err := entity.Get[sandbox.Preview](ctx, s.Store, pid)
	if err != nil {
		return "", time.Time{}, err
	}
	url := s.Address(p)
	switch {
	case url == "":
		return "", time.Time{}, errs.New(errs.FailedPrecondition, "there is no ingress").WithHint("set ingress.http_address")
	case !bytes.Equal(p.Spec.Key, s.Key.Public()):
		return "", time.Time{}, errs.New(errs.FailedPrecondition, "preview %s was made with another key", p.ID).
			WithHint("make it again: `r sandbox preview %s %d`", p.Spec.Sandbox, p.Spec.Port)
	}
	if ttl == 0 {
		ttl = DefaultTTL
	}
	end := time.Now().Add(ttl).UTC().Truncate(time.Second)
	if at := p.Spec.ExpiresAt; at != nil && at.Before(end) {
		end = *at
	}
	return url + "?" + preview.Parameter + "=" + s.Key.Sign(string(p.ID), end), end, nil
}

// Address returns the URL of a preview, with PORT in place of the port if it is of
// every port; "" if there is no ingress.
func (s *Service) Address(p *sandbox.Preview) string {
	label := preview.Label(string(p.Spec.Sandbox), int(p.Spec.Port))
	if p.Spec.Port == 0 {
		label = "PORT" + label[1:]
	}
	return s.URL(label)
}

// Delete deletes a preview. Connections through it are ended, and its tokens are
// void from then on.
func (s *Service) Delete(ctx context.Context, pid id.Preview) error {
	return entity.Remove[sandbox.Preview](ctx, s.Store, pid)
}

// Dial connects to a port through a preview, on whatever address a process listens.
// PermissionDenied if the preview is of another port, has ended, or is of every
// port: that opens no port that a process keeps to the sandbox itself.
func (s *Service) Dial(ctx context.Context, pid id.Preview, port int) (sandboxes.Conn, error) {
	p, err := entity.Get[sandbox.Preview](ctx, s.Store, pid)
	switch {
	case err != nil:
		return nil, err
	case p.Spec.Port != int64(port):
		return nil, errs.New(errs.PermissionDenied, "preview %s is not of port %d alone", p.ID, port)
	case expired(p):
		return nil, errs.New(errs.PermissionDenied, "preview %s has ended", p.ID)
	}
	return s.DialSandbox(ctx, p.Spec.Sandbox, port)
}

// Wake resumes the sandbox of a preview if it is paused, and returns at once.
func (s *Service) Wake(ctx context.Context, pid id.Preview) error {
	p, err := entity.Get[sandbox.Preview](ctx, s.Store, pid)
	if err != nil {
		return err
	}
	return s.WakeSandbox(ctx, p.Spec.Sandbox)
}
