// Package ingress is the HTTP data plane: a process of its own that leads
// requests to the sandboxes of apps.
//
// It serves from an immutable Table in memory, replaced as a whole when what it
// needs of the entities that it watches (app, route, sandbox; package
// entity/informer) changes; a request reads no store.
// The state behind the table is also kept in a file, so that a new process
// serves before, and without, the control plane. What it does not know it does
// not forget: when the store cannot be reached, the last table stays.
//
// # A request
//
// The host and the path select a rule: the exact host, then <app>.<local
// domain>, then *.wildcard (the longest suffix), then *; within a host the
// longest path prefix, at a segment boundary. The rule's app says which version
// is active; of its ready sandboxes the less busy of two random ones gets the
// request. While there is none the request waits, bounded in number and time,
// and is woken by every new table. A sandbox that cannot be dialled is passed
// over for a moment and the request tries another; once a byte of the request
// may have reached a sandbox it is repeated only if that is harmless.
//
// A new active version takes new requests atomically: a request counts itself
// on a sandbox, then looks whether the table is still the one it chose from,
// and chooses again if not. So when a new table is visible (admin: synced),
// the count of in-flight requests of the old version can only fall.
//
// A sandbox on a runner has no address here: its connections go through the server
// (Config.DialService). It gets a request when those of this node have more than
// runnerCost requests more than it. A sandbox on the node of another server is not reached.
//
// # The table file
//
//	runtime-ingress-table 1 <sha256 of the rest, hex>\n
//	<JSON of State>
//
// It is replaced by rename after fsync. A file that fails its check is reported
// and not used.
//
// # HTTPS
//
// The certificates with their keys come from Config.Certificates. The keyring keeps
// them in memory and in a file of the same form, with the head
// "runtime-ingress-certificates 1". The name that a client sends selects one, at
// each handshake; connections that are open keep theirs.
//
// # Takeover
//
// A new process gets the listening sockets of the one that serves (Config.TakeOver)
// as descriptors on a connection of the admin socket, and stands by:
//
//	POST /handover, Upgrade: runtime-ingress-handover/1
//	101, then with the descriptors attached one line of JSON: network and address of each
//	a line of JSON each 50 ms: the position of the old one's table, and its requests
//
// It serves after POST /serve, which the server sends once the name of the admin socket
// leads to it; or when the old one drains, or the connection has ended. Until the old
// one has ended its requests, the admin interface adds what it reports.
//
// UDP sockets with HTTP/3 are passed too (package quicsocket). The old process reads them
// no longer, and gets the packets of its connections from the new one.
//
// # Locks
//
// Requests take no lock but the one of a sandbox's idle connections. The
// goroutine of the informers alone builds tables; registry.mu guards the
// sandboxes and apps that survive a table, and is never held during IO.
package ingress
