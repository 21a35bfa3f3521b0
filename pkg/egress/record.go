package egress

import (
	"net/netip"
	"time"
)

// Record is one question or connection of a sandbox whose policy is Filtered. The sandbox chose the name.
type Record struct {
	Time     time.Time  `json:"time"`
	Sandbox  string     `json:"sandbox"`
	Protocol string     `json:"protocol"`         // dns, tls, http, https (with a secret), or tcp where no name is looked for
	Name     string     `json:"name,omitempty"`   // at most 253 printable bytes
	Address  netip.Addr `json:"address,omitzero"` // the destination; not for dns
	Port     uint16     `json:"port,omitempty"`   // of the destination
	Allowed  bool       `json:"allowed"`          // the policy permits it
	Reason   string     `json:"reason,omitempty"` // why not, or why it failed nevertheless
	Secret   string     `json:"secret,omitempty"` // names of the secrets that were added, with commas between them
	Missed   int64      `json:"missed,omitempty"` // records before this one that were not delivered
}
