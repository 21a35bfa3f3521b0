// Package rpcserver serves the interfaces of api/*/rpc.yml. Its handlers decode, call
// package service or the driver, and encode; permissions are declared in the
// YAML and enforced by pkg/rpc before a handler is called.
package rpcserver

import (
	"context"
	"log/slog"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/api/server"
	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/informer"
	"miren.dev/runtime/pkg/buildlog"
	"miren.dev/runtime/pkg/rpc"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/pkg/source"
	"miren.dev/runtime/servers/service"
)

// Deps is what the handlers call.
type Deps struct {
	Service   *service.Service
	Store     entity.Store
	Informers *informer.Set // over Store
	Sources   *source.Store
	BuildLogs *buildlog.Logs
	Driver    execution.Driver
	// Image turns what people call an image (a base image's name, a reference)
	// into a reference in the node's image store, making it if need be.
	Image func(ctx context.Context, name string) (string, error)
	Log   *slog.Logger
}

// Register makes s serve apps, deploys, builds, routes, sandboxes and nodes.
func Register(s *rpc.Server, d Deps) {
	app.RegisterApps(s, &apps{d})
	app.RegisterDeploys(s, &deploys{d})
	app.RegisterBuilds(s, &builds{d})
	app.RegisterRoutes(s, &routes{d})
	sandbox.RegisterSandboxes(s, &sandboxes{d})
	server.RegisterNodes(s, &nodes{d})
}

// record encodes an entity for the wire.
func record(o schema.Object) (schema.Record, error) {
	rec, err := o.EntityKind().Encode(o)
	if err != nil {
		return schema.Record{}, err
	}
	return *rec, nil
}

func yes(b *bool) bool { return b != nil && *b }

func value(n *int64) int64 {
	if n == nil {
		return 0
	}
	return *n
}

func ptr[T comparable](v T) *T {
	var zero T
	if v == zero {
		return nil
	}
	return &v
}
