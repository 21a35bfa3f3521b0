package e2b

import (
	"context"
	"net/http"
	"slices"

	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
)

// allTraffic is E2B's rule for everything.
const allTraffic = "0.0.0.0/0"

// network is what a sandbox may reach, as E2B's API says it: deny first, and
// allow wins.
type network struct {
	AllowOut           []string       `json:"allowOut,omitempty"`
	DenyOut            []string       `json:"denyOut,omitempty"`
	AllowInternet      *bool          `json:"allow_internet_access,omitempty"` // of an update
	AllowPublicTraffic *bool          `json:"allowPublicTraffic,omitempty"`
	MaskRequestHost    string         `json:"maskRequestHost,omitempty"`
	EgressProxy        map[string]any `json:"egressProxy,omitempty"`
	Rules              map[string]any `json:"rules,omitempty"`
	HTTPSPorts         []int          `json:"httpsPorts,omitempty"`
}

// unserved names what is asked for and missing; "" if nothing.
func (n *network) unserved() string {
	switch {
	case n == nil:
	case n.EgressProxy != nil:
		return "a proxy for outgoing traffic (network.egressProxy)"
	case len(n.Rules) > 0:
		return "changing outgoing requests (network.rules)"
	case n.MaskRequestHost != "":
		return "another host name for incoming requests (network.maskRequestHost)"
	case len(n.HTTPSPorts) > 0:
		return "ports with TLS (network.httpsPorts)"
	}
	return ""
}

// egress returns the policy; nil: the installation's.
func (n *network) egress(internet *bool) (*sandbox.Egress, error) {
	if n == nil {
		n = &network{}
	}
	if internet == nil {
		internet = n.AllowInternet
	}
	all := slices.Contains(n.DenyOut, allTraffic) || internet != nil && !*internet
	switch {
	case all && len(n.AllowOut) > 0:
		return &sandbox.Egress{Mode: sandbox.EgressModeList, Allow: n.AllowOut}, nil
	case all:
		return &sandbox.Egress{Mode: sandbox.EgressModeNone}, nil
	case len(n.DenyOut) > 0 && len(n.AllowOut) > 0:
		return nil, missing("rules that permit a part of what others deny (network.allowOut with denyOut other than " + allTraffic + ")")
	case len(n.DenyOut) > 0:
		return &sandbox.Egress{Mode: sandbox.EgressModeAll, Deny: n.DenyOut}, nil
	}
	return nil, nil
}

// networkOf is the reverse of egress.
func networkOf(e *sandbox.Egress) (n *network, internet *bool) {
	if e == nil {
		return nil, nil
	}
	allowed := e.Mode == sandbox.EgressModeAll
	if allowed {
		return &network{DenyOut: e.Deny}, &allowed
	}
	return &network{AllowOut: e.Allow, DenyOut: []string{allTraffic}}, &allowed
}

// setTraffic makes a preview of every port of a sandbox, if the request says
// whether they are public.
func (c *caller) setTraffic(ctx context.Context, sid id.Sandbox, n *network) error {
	if n == nil || n.AllowPublicTraffic == nil {
		return nil
	}
	_, err := c.previews.Create(ctx, &sandbox.CreatePreviewRequest{Sandbox: sid, Public: n.AllowPublicTraffic})
	return err
}

func (s *Server) setNetwork(ctx context.Context, c *caller, w http.ResponseWriter, r *http.Request) (int, any, error) {
	var n network
	if err := decode(w, r, &n); err != nil {
		return 0, nil, err
	}
	if what := n.unserved(); what != "" {
		return 0, nil, missing(what)
	}
	sb, err := c.sandbox(ctx, r.PathValue("id"))
	if err != nil {
		return 0, nil, err
	}
	egress, err := n.egress(nil)
	if err != nil {
		return 0, nil, err
	}
	if err := c.setTraffic(ctx, sb.GetID(), &n); err != nil {
		return 0, nil, err
	}
	if egress == nil {
		egress = &sandbox.Egress{Mode: sandbox.EgressModeAll}
	}
	if _, err := c.sandboxes.SetEgress(ctx, &sandbox.EgressRequest{Sandbox: sb.GetID(), Egress: *egress}); err != nil {
		return 0, nil, err
	}
	return http.StatusNoContent, nil, nil
}
