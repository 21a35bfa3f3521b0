// Package metrics has the history of what apps, sandboxes and nodes use and serve.
//
//	Recorder   takes samples of everything that runs, at an interval
//	Service    answers queries about apps, sandboxes and nodes
//
// A sample names its sandbox, and the app, service and node of that; sandboxes of no
// app have no app. Those of requests come from the ingress, by app and service. A
// sandbox that has ended gets no more samples, and its series fall out of memory after
// an hour or two.
package metrics

// Names of the series.
const (
	sandboxCPU       = "sandbox_cpu_seconds_total"
	sandboxMemory    = "sandbox_memory_bytes"
	sandboxProcesses = "sandbox_processes"
	sandboxReceived  = "sandbox_received_bytes_total"
	sandboxSent      = "sandbox_sent_bytes_total"
	requests         = "ingress_requests_total"
	requestSeconds   = "ingress_request_seconds_bucket"
	requestsInFlight = "ingress_requests_in_flight"
	nodeCPU          = "node_cpu_seconds_total"
	nodeMemory       = "node_memory_bytes"
	nodeProcesses    = "node_processes"
	nodeReceived     = "node_received_bytes_total"
	nodeSent         = "node_sent_bytes_total"
	nodeDisk         = "node_disk_bytes"
)
