package main

// titles describe, per benchmark, what is compared.
var titles = map[string]struct{ title, how string }{
	"cli": {"Command line", "From the start of a program to its end, and its size. Ours: the client `r`. Peer: the program `runtime`, which has the same\n" +
		"commands, the server and the components of its machine."},
	"store": {"Store", "Compare-and-swap puts of 250 bytes, every client with a TLS connection and keys of its own, durable on the same disk. Ours: RPC to a\n" +
		"process with `entity/pgstore` on a private PostgreSQL. Peer: etcd with `client/v3`, `If(ModRevision).Then(Put)`. Watch latency is from the\n" +
		"beginning of a put to its event at each of four watchers on connections of their own; every watcher is checked to have seen every put, in order."},
	"rpc": {"RPC", "One connection, TLS 1.3 with client certificates. Calls echo 200 bytes. Peer: grpc-go with protobuf `BytesValue`."},
	"disks": {"Disks", "A volume of 1 GiB, full of data that does not compress, served by a process of its own (cache 128 MiB, store a directory on the same disk). It and the\n" +
		"peers that have files run under memory limits of 512 MiB, page cache included. Peers: nbdkit, `qemu-nbd --cache=none --aio=native`, and for attached disks\n" +
		"`losetup --direct-io=on --sector-size 4096` on a file. What a turn of ours writes goes to the store after the turn, outside of both sides' time; the rows\n" +
		"*upload and GC running* say what is left while it does."},
	"recovery": {"Recovery of disks", "A volume of 100 GiB, 4 KiB of every 2 MiB written, with a log of 64 KiB writes that never reached the store and were never flushed, is opened\n" +
		"after kill -9, with 512 MiB of memory, and what can be dropped of the page cache dropped; and twice more, when the first time has made the log\n" +
		"durable. Snapshot and clone are of that volume, sent."},
	"diskstate": {"State of disks", "Memory: after a collection, each disk written and read before. Write amplification: what GC wrote\n" +
		"on top of the caller's random 4 KiB writes, in segments of 1 MiB in a store in memory, when GC holds the space at 1.43×."},
	"filesystems": {"File systems on disks", "A volume of 3 GiB, attached, with an ext4 or xfs, while it sends to its store, a directory on the same disk. Peer:\n" +
		"`losetup --direct-io=on` on a file. pgbench: PostgreSQL with checksums, scale 20, eight clients, turns of 20 s. The build has a new build cache on the\n" +
		"file system, which is synced at its end. S3: a volume of 1 GiB whose store is MinIO on the same disk."},
	"logs": {"Logs", "The store of apps' output, in this process: lines of JSON and plain ones are appended as the node does, until their text has the\n" +
		"size of `--logs-size`; then all of it is searched. Sizes are of the text, not of the disk. No peer."},
	"memory": {"Memory", "Proportional set size (PSS) of each process after one app was deployed, BuildKit has ended and the installation was left alone\n" +
		"for four minutes. Pages that other installations on the machine map too (the same binaries) count in part only: measure with no other running."},
	"sandbox": {"Sandboxes", "Create to first exec: `Sandboxes.Run`, `Wait` and `Exec` of `/bin/true` through RPC until its exit code is there, with network, limits,\n" +
		"agent and logs. Peer: `runsc run` of `/bin/true` on the same root file system with the same limits and an unconnected network namespace, until it\n" +
		"has exited. `r sandbox run` is a process of the client, from its start to its end. Execs are of `/bin/true` too, one after the other."},
	"agents": {"Agents", "Sandboxes as agents use them, without a main process. At the node: the driver alone, with network and limits. A claim is\n" +
		"`Driver.Configure` of a sandbox that waits. Peers: `runsc run`, `checkpoint` and `restore` of the same image with the same limits and an unconnected\n" +
		"network namespace; `cp` on the same disk. The static program makes one system call. A busy sandbox has two loops and the limit of one processor.\n" +
		"Through RPC: `Sandboxes.Run` with a template that has a warm pool, until the sandbox runs, and `Exec`. pip installs from files in the sandbox,\n" +
		"on both sides as a process of a sandbox that runs. Memory of 1 GiB is random."},
	"faces": {"Faces", "`/bin/true` in a sandbox that runs, one command after the other, over a connection that stays. MCP and SSH have `/bin/sh` execute it. What a face adds\n" +
		"is the difference to the same command by RPC in the same turns. Streams: what a reader gets of the output of a process that never waits for it (`yes`), by\n" +
		"REST and by RPC; and what a server in the sandbox sends, through the ingress and straight to a client on the machine."},
	"deploy": {"Deploy", "One line of `examples/go-http` changed. Ours: upload, build, new sandbox, shift of the traffic, until the ingress answers with the\n" +
		"new line. Peer: `buildctl build` of the same Dockerfile and change with the same buildkitd and caches: the build alone."},
	"wake": {"Wake", "`examples/go-http` with `scale = { min = 0 }`, without a sandbox: a request on a new connection, until its answer is read. The\n" +
		"ingress holds it while the server makes a sandbox from the image, or, with `suspend = true`, resumes the paused one."},
	"dashboard": {"Dashboard", "The overview of the dashboard in a headless Chromium with an empty cache, logged in, on a connection of this machine: from the begin of the\n" +
		"navigation to the first contentful paint, and until the overview has its content. No peer."},
	"ingress": {"Ingress", "Keep-alive GETs from a lean client. Peers: a tuned `httputil.ReverseProxy`, and Caddy with as many idle connections as are used, as processes of\n" +
		"their own before the same backend (200 bytes). HTTPS is TLS 1.3 with a certificate for P-256, on connections that stay.\n" +
		"Into a sandbox (`examples/go-http`): the same client, through the ingress and straight to the sandbox's address."},
}

// Reasons that are long, or apply to several figures.
const (
	limitExec = "starting a process in gVisor, where system calls are what costs: an exec of the dynamic /bin/true is 132 of them in the guest (37 are the program's own), " +
		"with 4 to 6 ms of processor time in its kernel, against 0.3 in the driver. RPC adds one read of the store. p99 is the CPU limit of the sandbox (1): execs one after the " +
		"other need about that much, and 3 of 15 periods of a short run were throttled, 8 ms each; since then a sandbox saves up a tenth of a second"
	limitRestore = "`runsc restore` itself, and containerd: of 228 ms (the fastest of ten, busy machine) `runsc restore` with its launcher took 181, the root file system 28, the container's record 3, " +
		"until the agent had connected 5, its identity 5, the record of the start 2; network and control group are made beside the root file system. Of that 28, 13 read the image's description anew " +
		"after each deletion of a snapshot, which is mended since; the rest is containerd's transaction. To make root file systems ahead and park them, as networks are, could save some 20; not tried"
	limitForks = "processor time on two cores: five kernels read their memory at once on both sides; on top of that each fork has what a resume has"
	limitCopy  = "gVisor: for 64 MiB its kernel and the agent took 200 ms of processor time on the way in and 125 on the way out, the node 60 to 70 (busy machine). The agent reads a socket of the host and writes a " +
		"file, or the reverse, so gVisor copies each byte twice and is entered for each piece. gVisor takes descriptors from a socket of the host, so that a file in memory could carry the " +
		"pieces in place of the socket: not tried. Windows of 1 MiB and frames of 64 KiB, in place of 256 and 32, took a fifth less processor time, but running sandboxes have agents that would refuse them: " +
		"the two sides have to agree on them first"
	limitClaim = "processor time: claim and first exec took 12.5 ms of it in gVisor on a busy machine (16 before warm sandboxes executed something ahead), of which 9 are the exec: see *exec through RPC*. " +
		"Through RPC the server adds 7 to 10: of one claim of 9.1 ms the transaction had 3.2, asking containerd for the sandbox's limits 1.8, the agent 2.1, the firewall 0.9, two reads of projects 0.6"
	limitWake = "the start of a sandbox from its image: of 334 ms (busy machine) the request was seen and written within 45, scheduled in 7, the agent had connected after 239, the process was known to run " +
		"after 16, and was ready after 25. A snapshot is not faster for a program that starts as fast: see *wake with suspend*"
	limitHop = "two cores that client, ingress and sandbox share: with many connections they are busy on both sides, so what the ingress uses is missing elsewhere. " +
		"Behind it a request also costs the sandbox itself 3 to 25 % more CPU time (rows above; longer head, fewer requests per wake-up). " +
		"With one connection it is the way: two more switches between processes"
)

// limits explain why a figure falls short, as found by measuring its parts.
var limits = map[string]string{
	"wake, p50":              limitWake,
	"wake, p99":              limitWake,
	"wake with suspend, p50": limitRestore,
	"wake with suspend, p99": limitRestore,
	"puts, 1 client": "with one client nothing is batched: a put is two round trips to PostgreSQL (load under the counter's lock, then write and commit), each a " +
		"switch between processes, and one fdatasync. Of about 0.6 ms the statements are 0.2, the second trip 0.1, the flush 0.2. etcd does its own flush in its own process",
	"watch latency, 64 clients, 1000 puts/s, p99": "not known: 0.50× in the run of the day before on another machine; p99 depends on the slowest commits",
	"puts, 8 clients": "a put waits for the batch under way and then for its own: two flushes in a row, each with two round trips to PostgreSQL in it, and the batches are small",
	"create to first exec": "processor time: about 165 ms where `runsc run` takes 115 (scheduler's trace, busy machine). runsc, gofer and the boot of the kernel are the same on both sides; " +
		"ours has the shim (18), containerd and the driver (15), what starts the shim (3), and in gVisor the agent, the main process and the exec beside each other (20 more than one process)",
	"exec through RPC, p50":        limitExec,
	"exec through RPC, p99":        limitExec,
	"exec through the driver, p50": limitExec,
	"exec through the driver, p99": limitExec,
	"warm redeploy to serving":     "the build itself is the peer's; the rest is the start of the new sandbox and its first passed probe",

	"NBD: randwrite 4K QD32": "processor time, on two cores that fio shares: 15 µs for one operation, fio included, as with nbdkit's disk in memory; of that the server is 7",
	"attached: randwrite 4K QD1": "the way through loop device and FUSE: of 61 µs (traced, before a reader looked for requests) 12 went by until the loop device's worker had sent the request, 14 until a reader " +
		"had it, 11 were ours (6 of them the write of the log), 15 went by until fio had the answer, and 9 were fio's own. A disk in memory behind them reached 1.81×. Raw loop's " +
		"figure moves with the disk (7.8 to 12.3k IOPS in two days)",
	"attached: randwrite 4K QD32": "processor time, and threads that wait for each other: 22 to 25 µs for one operation, fio included, on two cores, of which a quarter is idle; raw loop needs 12 to 15 and waits for " +
		"the disk. Of 26 µs in a scheduler's trace fio had 9 and the loop device's workers 7, two of which take turns with each request; both are the kernel's. Ours were 9: reading a request, the log " +
		"through the page cache (without that write: 1.27×; past the page cache it costs as much, see decision 9) and the answers. Raw loop's figure moves with the disk (37 to 108k IOPS in three days)",
	"attached: randwrite 4K QD32, upload and GC running": "processor time: upload and GC take a fifth of the two cores (13 % build and send segments, of that the reads of the log 2, the write to the store 5; " +
		"publishing and GC 7), and what they take writers lack: the log grows faster than it is sent, so they have work all the time",
	"attached: 4K write+fsync": "the disk, and waking up: of one cycle (268 µs with its trace, 160 to 200 in raw loop) 58 went by until the write was in the log, its write to the disk and the flush of the disk " +
		"took 110 one after the other with an idle processor woken after each (20 to 30 in this VM), and 40 until fio had the answer; the request for the flush is on its way meanwhile. That a reader " +
		"looks for requests is worth a seventh. A disk in memory behind them: 1.6×",
	"attached: randwrite 4K QD32, upload and GC running, p99": "writes wait while the goroutine that builds segments has the processor. Since it yields after each frame of 64 KiB it is 2.5 ms instead of 3.5",
	"attached: write 1M": "processor time or the disk, whichever there is less of: 760 µs for 1 MiB, fio included, on two cores, raw loop needs 470 (FUSE copies the data, pages are looked up " +
		"again for the direct write of the log, and blocks are summed); and where the disk is fast, that one record of the log is written at a time: it does 1865 MiB/s so with 1 MiB at once, 2376 with two at a " +
		"time, as raw loop has it",
	"attached: read 1M": "processor time: where the volume was written in order 660 µs for 1 MiB, fio included, on two cores, a fifth of it for checksums and a quarter for the two copies of FUSE and the answer; raw loop " +
		"needs 150, and does 2.5 to 3.8 GiB/s where the machine's host has the file in its memory (0.8 on another machine: 1.09×). Half of the volume was written at random before: there it is 1700 µs, as twice as much " +
		"is read and summed as is wanted (dead blocks are in the frames of 64 KiB too), and copied block by block",
	"attached: randread 4K QD32 in the cache": "processor time, two cores busy for 21 µs for one operation, fio included, where raw loop needs 13 and reads from the memory of the machine's host (49k IOPS on another machine). A disk that " +
		"copies from memory and does nothing else reached 0.95× behind the same FUSE and loop device",
	"attached: randread 4K QD32 larger than the cache": "processor time: 36 µs for one operation on two cores, of which a fifth waits: fio 10, the loop device's worker 4 to 6 (it and fio take turns on one processor with each request, so " +
		"that one does at most 55k), submitting a direct read 5, the answer 4, reading the request 2, and what it costs the machine's host to be told of reads, once for eight of them. A disk in memory behind them: 0.95×. Where the " +
		"machine's host has the file in its memory, raw loop does 108k instead of 48k",
	"recovery, 4.0 GiB of log, 100 GiB volume": "the indexes of the log's files are read (64 KiB of each), and whole only the last files, which the log does not yet promise to be durable: up to three, " +
		"or more if the disk is slower than the writer; then the map and the manifest, which is written twice",
	"first read of a clone, store of 20 ms": "one request: the map is read while the disk is opened, the index of the segment beside the frame. What is on top of its 20 ms is processor time",

	"exec of a static program through the driver, p99": "not measured by itself; the CPU limit of the sandbox is the likely cause, as for *exec through the driver, p99*: the median is a twentieth of it",
	"pause": "the kernel's writing of the image and its way to the disk, and containerd: of 62 ms (the fastest of ten, busy machine) saving took 46, syncing and publishing 10, the record of the sandbox and a " +
		"name that keeps its image 4, its agent 1, its network 1. `runsc checkpoint` does not sync. To keep the image while the memory is saved would give 2 of 62, which is not worth its code",
	"pause, p50": "see *pause*",
	"resume":     limitRestore,
	"wake with 1 GiB of memory: resume to first exec, p50": "the memory comes back from the image before anything runs: 1 GiB takes a second more than the small sandbox of " +
		"*wake: resume to first exec*. What `runsc restore --background` would gain was not tried",
	"wake: resume to first exec, p50": "see *resume*: `runsc restore` alone takes as long as the goal. The exec adds 18 ms (later ones 4): what it needs comes out of the image page by page. To execute something before " +
		"the answer would only move that time",
	"five forks at once":            limitForks,
	"five forks at once, p50":       "see *five forks at once*",
	"file of 64 MiB into a sandbox": limitCopy, "file of 64 MiB out of a sandbox": "see *file of 64 MiB into a sandbox*",
	"100 cold at once, to first exec":      "processor time, all of both cores: 169 ms for each sandbox, 108 for a `runsc run`. See *create to first exec*",
	"100 claims at once, to first exec":    "processor time of two cores: see *claim to first exec at the node, p50*. A hundred kernels wake up at once, and take 38 ms each with everything that runs beside them; not looked into further",
	"claim to first exec at the node, p50": limitClaim,
	"claim to first exec through RPC, p50": "see *claim to first exec at the node, p50*",
	"claim to first exec through RPC, p99": "not measured by itself",

	"control plane together": "pages of programs, which the kernel takes back when memory is short: of a server that had just begun they were 46 MiB of 77, of the ingress 33 of 48, of containerd " +
		"23 of 29; what they allocate was 31, 14 and 6. The program that server and ingress share has 97 MiB. 18 of them go if nothing in it uses text/template, for which the linker keeps all methods; the " +
		"libraries of the metrics store use it, so that was measured and not done",

	"into a sandbox, 1 connection":   limitHop,
	"into a sandbox, 16 connections": limitHop,
	"into a sandbox, 64 connections": limitHop,
}
