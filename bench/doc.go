// Command bench measures runtime against the peers that its goals name, and
// prints one table of ratios. hack/bench.sh builds and runs it; `make bench`
// runs everything and writes docs/benchmarks.md.
//
// It is a module of its own, so that the peers (etcd, grpc-go) stay out of the
// product's dependencies.
//
// # How it measures
//
// Both sides of a row run in the same run, in processes of their own, and take
// turns in rounds; the side that goes first alternates. A figure is the median over the
// rounds, a ratio the median of the rounds' ratios: a machine that is busy for
// a while slows both sides. Peers have the same data, disk, TLS version,
// certificates and number of connections.
//
// # Processes
//
// The program runs itself as `bench child NAME ...` for everything that serves:
// a child says "ready ADDRESS" on its standard output and ends, cleaning up, when its
// standard input closes, so that none outlives a bench that was killed. What
// stands in the installation (package install.go) is the product's own
// binary, bin/runtime.
//
// Everything is below one directory, rt-bench-* in --dir, which is removed at
// the end, also after an error or Ctrl-C; what a killed bench left, the next
// one tears down (scratch.go).
package main
