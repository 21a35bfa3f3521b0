package main

// titles say, per benchmark, what is compared with what.
var titles = map[string]struct{ title, how string }{
	"store": {"Store", "Compare-and-swap puts of 250 bytes, every client with a TLS connection and keys of its own, durable on the same disk. Ours: RPC to a\n" +
		"process with `entity/pgstore` on a private PostgreSQL. Peer: etcd with `client/v3`, `If(ModRevision).Then(Put)`. Watch latency is from the\n" +
		"beginning of a put to its event at each of four watchers on connections of their own; every watcher is checked to have seen every put, in order."},
	"rpc":    {"RPC", "One connection, TLS 1.3 with client certificates. Calls echo 200 bytes. Peer: grpc-go with protobuf `BytesValue`."},
	"memory": {"Memory", "Proportional set size (PSS) of each process after one app was deployed and the installation was left alone for a while."},
	"sandbox": {"Sandboxes", "Create to first exec: `Sandboxes.Run`, `Wait` and `Exec` of `/bin/true` through RPC until its exit code is there, with network, limits,\n" +
		"agent and logs. Peer: `runsc run` of `/bin/true` on the same root file system with the same limits and an unconnected network namespace, until it has exited."},
	"deploy": {"Deploy", "One line of `examples/go-http` changed. Ours: upload, build, new sandbox, shift of the traffic, until the ingress answers with the\n" +
		"new line. Peer: `buildctl build` of the same Dockerfile and change with the same buildkitd and caches: the build alone."},
	"ingress": {"Ingress", "Keep-alive GETs of 200 bytes from a lean client. Peer: a tuned `httputil.ReverseProxy` as a process of its own before the same backend.\n" +
		"Into a sandbox: the same client, through the ingress and straight to the sandbox's address."},
}

// limits say what limits a figure that falls short, as found with profiles.
var limits = map[string]string{}
