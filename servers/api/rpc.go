package api

import (
	"cmp"
	"net"
	"net/http"
	"sync"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/rpc"
	"miren.dev/runtime/pkg/rpc/upgrade"
)

// maxRPCPerKey bounds the connections for RPC of one key, so that none takes the
// room of the others.
const maxRPCPerKey = 64

// MountRPC adds connections for RPC (package upgrade), which adopt serves with the
// identity of the key. The limits and metrics of requests hold for the request
// that opens one; those of RPC hold for its calls.
func (s *Server) MountRPC(adopt func(net.Conn, rpc.Identity) error) {
	s.Handle("rpc", upgrade.Path, &rpcFace{s: s, adopt: adopt, open: map[string]int{}})
}

type rpcFace struct {
	s     *Server
	adopt func(net.Conn, rpc.Identity) error

	mu   sync.Mutex
	open map[string]int // connections of each key
}

// begin counts a connection of a key; end uncounts it, once. False: it has too many.
func (f *rpcFace) begin(key string) (end func(), ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.open[key] >= maxRPCPerKey {
		return nil, false
	}
	f.open[key]++
	return sync.OnceFunc(func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.open[key]--; f.open[key] == 0 {
			delete(f.open, key)
		}
	}), true
}

// counted is a connection that is uncounted when it is closed.
type counted struct {
	net.Conn
	end func()
}

func (c *counted) Close() error {
	defer c.end()
	return c.Conn.Close()
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
	end, ok := f.begin(cmp.Or(id.Key, id.Name))
	if !ok {
		WriteProblem(w, errs.New(errs.ResourceExhausted, "%s has %d connections for RPC", id.Name, maxRPCPerKey).WithHint("end one of them"))
		return
	}
	nc, err := upgrade.Accept(w)
	if err == nil {
		err = f.adopt(&counted{nc, end}, id)
	}
	if err != nil {
		end()
	}
	if errs.Is(err, errs.FailedPrecondition) {
		WriteProblem(w, err)
		return
	}
	if err != nil {
		f.s.cfg.Logger.Debug("rpc connection refused", "peer", r.RemoteAddr, "identity", id.Name, "error", err)
	}
}
