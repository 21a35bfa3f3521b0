// Package runner connects a server with its runners: machines that run sandboxes,
// dial out to the server, and can be reached by no address.
//
//	Gateway      what runners call: it joins them, and serves each the store as
//	             far as it concerns its node (Scope), and images of its sandboxes
//	Hub          the runners that are connected, as sandboxes.Node
//	Peers        connections between sandboxes of apps on different machines
//	Client       the runner's side: it joins, renews its certificate, and keeps
//	             the connection through which the server calls it
//
// A runner has one connection, of TLS, which it dials. Its calls go to the
// Gateway; a call of it that lasts, Gateway.Connect, carries the server's calls
// in the other direction (rpc.NewTunnel).
//
// A runner is not trusted with more than its own sandboxes: the Gateway serves no
// other method, and Scope refuses what concerns other nodes.
package runner
