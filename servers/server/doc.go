// Package server puts a server together: the parts of this machine (package
// components), the store, the controllers and the RPC server.
//
//	Run       what `runtime server run` does, until ctx ends
//	Teardown  ends everything of an installation; `r server stop` calls it
//	Ingress   what `runtime ingress run` does
//
// Order of start: identity and lock of the state directory, store, node parts,
// controllers, RPC, ingress process. The RPC socket appears last, so a client that
// connects finds a working server. At the end of Run only the control plane
// ends: sandboxes, ingress, containerd, BuildKit and PostgreSQL keep running, and the
// next Run adopts them.
package server
