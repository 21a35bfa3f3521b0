package certificates

import (
	"testing"
	"time"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/pkg/schema"
)

// TestServerNamesAreWanted: a name for which the ingress ends TLS at a port needs a certificate; one
// that is passed through does not.
func TestServerNamesAreWanted(t *testing.T) {
	web := app.NewRoute()
	web.Project, web.CreateRevision, web.Spec.Host = "p-1", 1, "web.example.com"
	port := func(created schema.Revision, project schema.ID, host string, ended bool) *app.TCPRoute {
		r := app.NewTCPRoute()
		r.Project, r.CreateRevision, r.Spec.Host, r.Spec.TLS, r.Spec.Passthrough = project, created, host, ended, !ended && host != ""
		return r
	}
	got := Wanted(HostsOf([]*app.Route{web}, []*app.TCPRoute{
		port(2, "p-1", "db.example.com", true), port(3, "p-1", "own.example.com", false), port(4, "p-1", "", true), port(5, "p-2", "web.example.com", true),
	}), nil, nil, time.Now())
	if len(got) != 2 || got["web.example.com"] != "p-1" || got["db.example.com"] != "p-1" {
		t.Errorf("%v", got)
	}
}
