package api

import (
	"net"
	"net/http"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/rpc"
	"miren.dev/runtime/pkg/rpc/upgrade"
)

// MountRPC adds connections for RPC (package upgrade), which adopt serves with the
// identity of the key. The limits and metrics of requests hold for the request
// that opens one; those of RPC hold for its calls.
func (s *Server) MountRPC(adopt func(net.Conn, rpc.Identity) error) {
	s.Handle("rpc", upgrade.Path, &rpcFace{s, adopt})
}

type rpcFace struct {
	s     *Server
	adopt func(net.Conn, rpc.Identity) error
}

// ServeHTTP implements http.Handler.
func (f *rpcFace) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	key := Key(r)
	if key == "" {
		WriteProblem(w, errNoKey())
		return
	}
	id, err := f.s.cfg.Authenticate(r.Context(), key)
	if err != nil {
		WriteProblem(w, err)
		return
	}
	if !upgrade.Wanted(r) {
		w.Header().Set("Upgrade", upgrade.Protocol)
		WriteProblem(w, errs.New(errs.InvalidArgument, "this path is for RPC: the request must ask to switch protocols to %s", upgrade.Protocol).
			WithHint("`r auth login` uses it; programs use /api/v1"))
		return
	}
	nc, err := upgrade.Accept(w)
	if errs.Is(err, errs.FailedPrecondition) {
		WriteProblem(w, err)
		return
	}
	if err == nil {
		err = f.adopt(nc, id)
	}
	if err != nil {
		f.s.cfg.Logger.Debug("rpc connection refused", "peer", r.RemoteAddr, "identity", id.Name, "error", err)
	}
}
