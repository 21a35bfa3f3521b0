package rest

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
)

func registerEgress(a huma.API) {
	register(a, op(http.MethodPut, "/sessions/{id}/egress", "set-session-egress", "sessions", "Change what a session may reach, connections that are open included"), setEgress)
	register(a, op(http.MethodGet, "/sessions/{id}/egress", "list-session-egress", "sessions", "List what a session whose policy has rules asked for"), listEgress)
	register(a, op(http.MethodGet, "/containers/{id}/stats", "get-container-stats", "containers", "Read what a running container uses"), containerStats)
}

type setEgressInput struct {
	SessionInput
	Body Egress
}

func setEgress(ctx context.Context, in *setEgressInput) (*body[Session], error) {
	sid, err := in.persistent()
	if err != nil {
		return nil, err
	}
	return sessionAnswer(sandboxes(ctx).SetEgress(ctx, &sandbox.EgressRequest{Sandbox: sid, Egress: *in.Body.policy()}))
}

// EgressRecord is a name that a session asked for, or a connection of it.
type EgressRecord struct {
	At        time.Time `json:"at" doc:"Time."`
	Protocol  string    `json:"protocol" doc:"dns, tls, http, https (with a secret) or tcp."`
	Name      string    `json:"name,omitempty" doc:"The name, which the session chose."`
	Address   string    `json:"address,omitempty" doc:"The address, of a connection."`
	Port      *int64    `json:"port,omitempty" doc:"The port."`
	Permitted bool      `json:"permitted" doc:"The policy permitted it."`
	Reason    string    `json:"reason,omitempty" doc:"Reason of a refusal, or of a failure."`
}

// EgressLog is what a session asked for.
type EgressLog struct {
	Records []EgressRecord `json:"records" doc:"The last ones that the node keeps in memory, the oldest first."`
}

func listEgress(ctx context.Context, in *SessionInput) (*body[EgressLog], error) {
	sid, err := in.persistent()
	if err != nil {
		return nil, err
	}
	resp, err := sandboxes(ctx).EgressLog(ctx, &sandbox.SandboxRequest{Sandbox: sid})
	if err != nil {
		return nil, err
	}
	out := EgressLog{Records: []EgressRecord{}}
	for _, r := range resp.Records {
		out.Records = append(out.Records, EgressRecord{
			At: r.At, Protocol: r.Protocol, Name: r.Name, Address: r.Address, Port: r.Port, Permitted: r.Permitted, Reason: r.Why,
		})
	}
	return &body[EgressLog]{out}, nil
}

// Stats is one reading of what a container uses.
type Stats struct {
	At          time.Time `json:"at" doc:"Time of the reading."`
	CPUMillis   int64     `json:"cpu_ms" doc:"Milliseconds of CPU time since its start."`
	MemoryBytes int64     `json:"memory_bytes" doc:"Memory."`
	Processes   int64     `json:"processes" doc:"Processes."`
	Received    *int64    `json:"received_bytes,omitempty" doc:"Bytes that it received over its network since it was connected; absent: not measured."`
	Sent        *int64    `json:"sent_bytes,omitempty" doc:"Bytes that it sent."`
}

func containerStats(ctx context.Context, in *ContainerInput) (*body[Stats], error) {
	s, err := sandboxes(ctx).Stats(ctx, &sandbox.SandboxRequest{Sandbox: id.Sandbox(in.ID)})
	if err != nil {
		return nil, err
	}
	return &body[Stats]{Stats{At: s.At, CPUMillis: s.CPU.Milliseconds(), MemoryBytes: s.MemoryBytes, Processes: s.PIDs, Received: s.ReceivedBytes, Sent: s.SentBytes}}, nil
}
