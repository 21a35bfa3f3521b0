// Package appnet is the table of the private networks of apps: the names that the
// sandboxes of an app may resolve, the addresses of these names, and the sandboxes to
// which they may connect.
//
//	SERVICE.APP.internal    the ready sandboxes of a service of an app
//	APP.internal            those of its service web
//	X.SERVICE.APP.internal  those of the service too, whatever X: it may tell them apart by the host of a request
//
// Each project has a network of its own: its apps, and nothing else, have names and
// reach each other there. An app may name those that it permits.
//
// A table is that of one node. A sandbox on another node has a stand-in there
// (standin.go), an address whose connections the node passes on.
package appnet

import (
	"net/netip"
	"slices"
	"strings"
)

// Domain is the top-level domain of the names.
const Domain = "internal"

// DefaultService is the service of a name without one.
const DefaultService = "web"

// App is an app and its sandboxes.
type App struct {
	Project string `json:"project"`
	Name    string `json:"name"`
	// Restricted: besides its own sandboxes only those of the apps in From may connect to
	// it. Otherwise all of the project may.
	Restricted bool     `json:"restricted,omitempty"`
	From       []string `json:"from,omitempty"`
	Services   []string `json:"services,omitempty"` // of the version that serves
	Members    []Member `json:"members,omitempty"`
}

// Member is a sandbox of an app.
type Member struct {
	Sandbox string `json:"sandbox"`           // its id
	Service string `json:"service,omitempty"` // empty: of none, such as a run of a task
	Ready   bool   `json:"ready,omitempty"`   // the name of the service has its address
	// Node is the other node that the sandbox is on; empty: it is on the table's node.
	Node string `json:"node,omitempty"`
	// StandIn is the address that the table's node gives to a sandbox of another node.
	StandIn netip.Addr `json:"stand_in,omitzero"`
}

// permits reports whether sandboxes of another app may connect to those of a.
func (a *App) permits(from *App) bool {
	return a.Project == from.Project && (a.Name == from.Name || !a.Restricted || slices.Contains(a.From, from.Name))
}

// Table is the private networks of a node. It is immutable.
type Table struct {
	apps  []App
	of    map[string]place // by sandbox
	named map[key]int      // app by project and name
	at    map[netip.Addr]string
}

// place says where a table has a sandbox.
type place struct {
	app    int
	member *Member
}

type key struct{ project, app string }

// New makes the table of apps, which it keeps.
func New(apps []App) *Table {
	t := &Table{apps: apps, of: map[string]place{}, named: map[key]int{}, at: map[netip.Addr]string{}}
	for i, a := range apps {
		t.named[key{a.Project, a.Name}] = i
		for j := range a.Members {
			m := &a.Members[j]
			t.of[m.Sandbox] = place{i, m}
			if m.StandIn.IsValid() {
				t.at[m.StandIn] = m.Sandbox
			}
		}
	}
	return t
}

// Apps returns the apps that the table was made of. They are shared.
func (t *Table) Apps() []App { return t.apps }

// Group returns the number of the app that a sandbox is of, from 1 on. Sandboxes of a
// group reach the same others.
func (t *Table) Group(sandbox string) (n uint32, ok bool) {
	p, ok := t.of[sandbox]
	return uint32(p.app + 1), ok
}

// Node returns the other node that a sandbox is on, "" if it is on the table's. ok is
// false for a sandbox of no app.
func (t *Table) Node(sandbox string) (node string, ok bool) {
	p, ok := t.of[sandbox]
	if !ok {
		return "", false
	}
	return p.member.Node, true
}

// Permits reports whether a sandbox may connect to another one.
func (t *Table) Permits(from, to string) bool {
	f, ok := t.of[from]
	o, found := t.of[to]
	return ok && found && t.apps[o.app].permits(&t.apps[f.app])
}

// Reaches returns the sandboxes that those of each group may connect to.
func (t *Table) Reaches() map[uint32][]string {
	out := map[uint32][]string{}
	for i := range t.apps {
		from := &t.apps[i]
		if len(from.Members) == 0 {
			continue
		}
		for j := range t.apps {
			if to := &t.apps[j]; to.permits(from) {
				for _, m := range to.Members {
					out[uint32(i+1)] = append(out[uint32(i+1)], m.Sandbox)
				}
			}
		}
	}
	return out
}

// Answer says what a name is to a sandbox.
type Answer int

// Answers.
const (
	Foreign Answer = iota // no name of this network: other name servers may know it
	Missing               // there is no such app or service in the sandbox's project
	Known
)

// Find returns the ready sandboxes that a name has for a sandbox that asks: those on the
// table's node, or else those on other nodes. The name is in lower case, without a dot at
// its end.
func (t *Table) Find(sandbox, name string) (ready []string, _ Answer) {
	asking, ok := t.of[sandbox]
	if !ok {
		return nil, Foreign
	}
	rest, ok := strings.CutSuffix(name, "."+Domain)
	if !ok {
		return nil, Foreign
	}
	labels := strings.Split(rest, ".")
	service, app := DefaultService, labels[len(labels)-1]
	if len(labels) > 1 {
		service = labels[len(labels)-2]
	}
	j, ok := t.named[key{t.apps[asking.app].Project, app}]
	if !ok || !slices.Contains(t.apps[j].Services, service) {
		if len(labels) > 2 {
			return nil, Foreign // such as a host of a cloud
		}
		return nil, Missing
	}
	var elsewhere []string
	for _, m := range t.apps[j].Members {
		switch {
		case !m.Ready || m.Service != service:
		case m.Node == "":
			ready = append(ready, m.Sandbox)
		default:
			elsewhere = append(elsewhere, m.Sandbox)
		}
	}
	if len(ready) == 0 {
		ready = elsewhere
	}
	return ready, Known
}
