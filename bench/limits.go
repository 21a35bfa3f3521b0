package main

// titles say, per benchmark, what is compared with what.
var titles = map[string]struct{ title, how string }{
	"store": {"Store", "Compare-and-swap puts of 250 bytes, every client with a TLS connection and keys of its own, durable on the same disk. Ours: RPC to a\n" +
		"process with `entity/pgstore` on a private PostgreSQL. Peer: etcd with `client/v3`, `If(ModRevision).Then(Put)`. Watch latency is from the\n" +
		"beginning of a put to its event at each of four watchers on connections of their own; every watcher is checked to have seen every put, in order."},
	"rpc": {"RPC", "One connection, TLS 1.3 with client certificates. Calls echo 200 bytes. Peer: grpc-go with protobuf `BytesValue`."},
	"disks": {"Disks", "A volume of 1 GiB, full of data that does not compress, served by a process of its own (cache 128 MiB, store a directory on the same disk). It and the\n" +
		"peers that have files run under memory limits of 512 MiB, page cache included. Peers: nbdkit, `qemu-nbd --cache=none --aio=native`, and for attached disks\n" +
		"`losetup --direct-io=on --sector-size 4096` on a file. What a turn of ours writes goes to the store after the turn, outside of everybody's time; the rows\n" +
		"*upload and GC running* say what is left while it does."},
	"diskstate": {"State of disks", "Recovery: a volume of 100 GiB, 4 KiB of every 2 MiB written, with a log of 64 KiB writes that never reached the store, after kill -9,\n" +
		"with 512 MiB of memory. Snapshot and clone are of that volume, sent. Memory: after a collection, each disk written and read before. Write\n" +
		"amplification: what GC wrote on top of the caller's random 4 KiB writes, in segments of 1 MiB in a store in memory, when GC holds the space at 1.43×."},
	"memory": {"Memory", "Proportional set size (PSS) of each process after one app was deployed and the installation was left alone for a while. Pages that other\n" +
		"installations on the machine map too (the same binaries) count in part only: measure with no other running."},
	"sandbox": {"Sandboxes", "Create to first exec: `Sandboxes.Run`, `Wait` and `Exec` of `/bin/true` through RPC until its exit code is there, with network, limits,\n" +
		"agent and logs. Peer: `runsc run` of `/bin/true` on the same root file system with the same limits and an unconnected network namespace, until it\n" +
		"has exited. Execs are of `/bin/true` too, one after the other."},
	"deploy": {"Deploy", "One line of `examples/go-http` changed. Ours: upload, build, new sandbox, shift of the traffic, until the ingress answers with the\n" +
		"new line. Peer: `buildctl build` of the same Dockerfile and change with the same buildkitd and caches: the build alone."},
	"ingress": {"Ingress", "Keep-alive GETs from a lean client. Peer: a tuned `httputil.ReverseProxy` as a process of its own before the same backend (200 bytes).\n" +
		"Into a sandbox (`examples/go-http`): the same client, through the ingress and straight to the sandbox's address."},
}

// Reasons that several figures share.
const (
	limitExec = "starting a process in gVisor, where system calls are what costs: an exec of the dynamic /bin/true is 132 of them in the guest (37 are the program's own), " +
		"with 4 to 6 ms of processor time in its kernel, against 0.3 in the driver. RPC adds one read of the store. p99 is the CPU limit of the sandbox (1): execs one after the " +
		"other need about that much, and 3 of 15 periods of a short run were throttled, 8 ms each; since then a sandbox saves up a tenth of a second"
	limitDisk = "not attributed yet. The process and its page cache share 512 MiB, and its heap was let grow to twice what is in use until the limit ended it in the " +
		"last rows of attached disks; since then it keeps within three quarters of the limit, which was not measured again on a quiet machine"
	limitHop = "two cores that client, ingress and sandbox share: with many connections they are busy on both sides, so what the ingress uses is missing elsewhere. " +
		"Behind it a request also costs the sandbox itself 3 to 25 % more CPU time (rows above; longer head, fewer requests per wake-up). " +
		"With one connection it is the way: two more switches between processes"
)

// limits say what limits a figure when it falls short, as found by measuring its parts.
var limits = map[string]string{
	"puts, 1 client": "with one client nothing is batched: a put is two round trips to PostgreSQL (load under the counter's lock, then write and commit), each a " +
		"switch between processes, and one fdatasync. Of about 0.6 ms the statements are 0.2, the second trip 0.1, the flush 0.2. etcd does its own flush in its own process",
	"puts, 8 clients": "a put waits for the batch under way and then for its own: two flushes in a row, each with two round trips to PostgreSQL in it, and the batches are small",
	"create to first exec": "processor time: about 165 ms where `runsc run` takes 115 (scheduler's trace, busy machine). runsc, gofer and the boot of the kernel are the same on both sides; " +
		"ours has the shim (18), containerd and the driver (15), what starts the shim (3), and in gVisor the agent, the main process and the exec beside each other (20 more than one process)",
	"exec through RPC, p50":        limitExec,
	"exec through RPC, p99":        limitExec,
	"exec through the driver, p50": limitExec,
	"exec through the driver, p99": limitExec,
	"warm redeploy to serving":     "the build itself is the peer's; the rest is the start of the new sandbox and its first passed probe",

	"NBD: randwrite 4K QD32":                           "processor time, on two cores that fio shares: not attributed further",
	"attached: randwrite 4K QD1":                       limitDisk,
	"attached: randwrite 4K QD32":                      limitDisk,
	"attached: 4K write+fsync":                         limitDisk,
	"attached: write 1M":                               limitDisk,
	"attached: read 1M":                                limitDisk,
	"attached: randread 4K QD32 larger than the cache": limitDisk,
	"recovery, 4.0 GiB of log, 100 GiB volume": "all of the log is read and every block checked, 3.4 s of processor time on two cores from a cold page cache; only heads up to what was " +
		"promised, and blocks when they are read, would be enough",
	"first read of a clone, store of 20 ms": "three requests one after the other: a page of the map, the index of the segment, the frame. The indexes of the newest 32 segments are read while " +
		"the disk is opened; this one is older",

	"into a sandbox, 1 connection":   limitHop,
	"into a sandbox, 16 connections": limitHop,
	"into a sandbox, 64 connections": limitHop,
}
