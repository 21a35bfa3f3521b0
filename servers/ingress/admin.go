package ingress

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	admin "miren.dev/runtime/api/ingress"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// maxAdminWait bounds how long a call of /synced may wait.
const maxAdminWait = time.Minute

func (in *Ingress) adminHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) { reply(w, in.status()) })
	mux.HandleFunc("GET /inflight", func(w http.ResponseWriter, r *http.Request) {
		// Read the position first: the counts below are then at least as new.
		out := admin.Inflight{Version: schema.ID(r.FormValue("version")), Table: in.position()}
		out.Sandboxes = in.inflight(out.Version)
		for _, n := range out.Sandboxes {
			out.Total += n
		}
		reply(w, out)
	})
	mux.HandleFunc("GET /activity", func(w http.ResponseWriter, r *http.Request) {
		a := admin.Activity{Sandbox: schema.ID(r.FormValue("sandbox"))}
		a.Requests, a.Idle = in.activity(a.Sandbox)
		reply(w, a)
	})
	mux.HandleFunc("GET /load", func(w http.ResponseWriter, r *http.Request) {
		seen, err := strconv.ParseInt(cmp.Or(r.FormValue("seen"), "0"), 10, 64)
		wait, werr := time.ParseDuration(cmp.Or(r.FormValue("wait"), "0s"))
		if err != nil || werr != nil {
			refuse(w, http.StatusBadRequest, errs.InvalidArgument, "seen must be a number, and wait a duration")
			return
		}
		reply(w, in.load(r.Context(), seen, min(wait, maxAdminWait)))
	})
	mux.HandleFunc("GET /synced", func(w http.ResponseWriter, r *http.Request) {
		revision, err := strconv.ParseInt(r.FormValue("revision"), 10, 64)
		if err != nil {
			refuse(w, http.StatusBadRequest, errs.InvalidArgument, "revision must be a number")
			return
		}
		wait := 10 * time.Second
		if s := r.FormValue("wait"); s != "" {
			if wait, err = time.ParseDuration(s); err != nil {
				refuse(w, http.StatusBadRequest, errs.InvalidArgument, "wait must be a duration")
				return
			}
		}
		ctx, cancel := context.WithTimeout(r.Context(), min(wait, maxAdminWait))
		defer cancel()
		at, err := in.follower.waitFor(ctx, schema.Revision(revision))
		if err == nil {
			err = in.pred.waitFor(ctx, schema.Revision(revision))
		}
		if err != nil {
			refuse(w, http.StatusGatewayTimeout, errs.DeadlineExceeded,
				"the table is at revision "+strconv.FormatInt(int64(at.Revision), 10)+", not yet at "+strconv.FormatInt(revision, 10))
			return
		}
		reply(w, in.status())
	})
	mux.HandleFunc("POST /handover", in.handOver)
	mux.HandleFunc("POST /serve", func(w http.ResponseWriter, _ *http.Request) {
		in.serveOnce.Do(func() { close(in.serve) })
		reply(w, in.status())
	})
	if in.cfg.Gatherer != nil {
		mux.Handle("GET /metrics", promhttp.HandlerFor(in.cfg.Gatherer, promhttp.HandlerOpts{}))
	}
	return mux
}

func (in *Ingress) status() admin.Status {
	s := admin.Status{PID: in.pid, Table: in.position(), Standby: in.standsBy(), Draining: in.draining.Load(), Routes: []admin.Route{}}
	s.Synced, s.Error = in.follower.status()
	select {
	case addrs := <-in.addrs:
		in.addrs <- addrs
		for _, a := range addrs {
			s.Addresses = append(s.Addresses, a.String())
		}
	default:
	}
	for _, l := range in.secure {
		s.TLSAddresses = append(s.TLSAddresses, l.Addr().String())
	}
	for _, n := range in.inflight("") {
		s.InFlight += n
	}
	t := in.table.Load()
	add := func(host string, rules []rule) {
		for _, r := range rules {
			path := r.path
			if path == "" {
				path = "/"
			}
			s.Routes = append(s.Routes, admin.Route{Host: host, Path: path, App: r.target.app.id, AppName: r.target.app.name,
				Service: r.target.service, Version: r.target.version, Ready: r.target.ready()})
		}
	}
	for _, host := range sortedKeys(t.exact) {
		add(host, t.exact[host])
	}
	for _, name := range sortedKeys(t.local) {
		for _, d := range in.cfg.LocalDomains {
			add(name+d, t.local[name])
		}
	}
	for _, suffix := range sortedKeys(t.wildcard) {
		add("*"+suffix, t.wildcard[suffix])
	}
	add("*", t.any)
	for _, a := range t.apps {
		s.Held += a.waiting.Load()
	}
	for _, g := range t.guests {
		s.Held += g.state.waiting.Load()
	}
	if p := in.pred.last(); p != nil {
		s.Held += p.Held
	}
	return s
}

func reply(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // the caller has gone
}

func refuse(w http.ResponseWriter, code int, class errs.Class, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(admin.Error{Class: class, Message: message})
}
