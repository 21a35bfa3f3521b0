package rpc_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/rpc"
	"miren.dev/runtime/pkg/schema"
)

// routes implements app.Routes, which rpcgen has generated from
// api/app/rpc.yml.
type routes map[string]string

func (r routes) Set(_ context.Context, req *app.SetRouteRequest) (*app.RouteResponse, error) {
	r[req.Host] = req.App
	return &app.RouteResponse{Route: schema.Record{Meta: schema.Meta{Name: req.Host}}}, nil
}

func (r routes) Delete(_ context.Context, req *app.DeleteRouteRequest) error {
	if _, ok := r[req.Host]; !ok {
		return errs.New(errs.NotFound, "there is no route for %s", req.Host)
	}
	delete(r, req.Host)
	return nil
}

func (r routes) Configure(_ context.Context, req *app.ConfigureRouteRequest) (*app.RouteResponse, error) {
	return r.get(req.Host)
}

func (r routes) Passwords(context.Context, *app.RoutePasswordsRequest) (*app.RoutePasswordsResponse, error) {
	return nil, errs.New(errs.NotFound, "no route of the example has passwords")
}

func (r routes) SetTCP(context.Context, *app.SetTCPRouteRequest) (*app.RouteResponse, error) {
	return nil, errs.New(errs.NotFound, "no port of the example is a route")
}

func (r routes) DeleteTCP(context.Context, *app.DeleteTCPRouteRequest) error {
	return errs.New(errs.NotFound, "no port of the example is a route")
}

func (r routes) get(host string) (*app.RouteResponse, error) {
	if _, ok := r[host]; !ok {
		return nil, errs.New(errs.NotFound, "there is no route for %s", host)
	}
	return &app.RouteResponse{Route: schema.Record{Meta: schema.Meta{Name: host}}}, nil
}

// A server serves a generated interface on a unix socket. The client calls the
// same methods; errors keep their class.
func Example() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "rpc-")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	socket := filepath.Join(dir, "server.sock")

	server, err := rpc.NewServer(rpc.ServerOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	app.RegisterRoutes(server, routes{})
	listener, err := rpc.ListenUnix(socket)
	if err != nil {
		fmt.Println(err)
		return
	}
	served := make(chan error)
	go func() { served <- server.Serve(listener) }()
	defer func() {
		server.Close()
		<-served
	}()

	conn, err := rpc.Dial(ctx, "unix://"+socket, rpc.ClientOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer conn.Close()
	client := app.NewRoutesClient(conn)
	set, err := client.Set(ctx, &app.SetRouteRequest{Host: "shop.example.com", App: "shop"})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("set", set.Route.Name)
	err = client.Delete(ctx, &app.DeleteRouteRequest{Host: "example.org"})
	fmt.Println(errs.ClassOf(err), "-", err)

	// Output:
	// set shop.example.com
	// not_found - there is no route for example.org
}

// Each method states the permission that it needs (rpc.yml). A caller without
// it is refused before the handler runs.
func ExampleServer_Local() {
	ctx := context.Background()
	server, err := rpc.NewServer(rpc.ServerOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer server.Close()
	app.RegisterRoutes(server, routes{})

	for _, role := range []string{"deployer", "viewer"} {
		conn := server.Local(rpc.Identity{Name: "ann", Roles: []string{role}, How: "process"})
		_, err := app.NewRoutesClient(conn).Set(ctx, &app.SetRouteRequest{Host: "shop.example.com", App: "shop"})
		fmt.Printf("%s denied: %v\n", role, errs.Is(err, errs.PermissionDenied))
		conn.Close()
	}

	// Output:
	// deployer denied: false
	// viewer denied: true
}

// logs implements app.Builds, which streams.
type logs struct{}

func (logs) Logs(_ context.Context, _ *app.BuildLogsRequest, s rpc.ServerStream[rpc.None, app.BuildLog]) error {
	for line := range 3 {
		if err := s.Send(&app.BuildLog{Offset: int64(line) + 1}); err != nil {
			return err // the caller has gone
		}
	}
	return nil
}

// A stream ends with io.EOF when the handler returns without an error.
func ExampleClientStream() {
	ctx := context.Background()
	server, err := rpc.NewServer(rpc.ServerOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer server.Close()
	app.RegisterBuilds(server, logs{})
	conn := server.Local(rpc.Identity{Name: "ann", Roles: []string{"viewer"}, How: "process"})
	defer conn.Close()

	stream, err := app.NewBuildsClient(conn).Logs(ctx, &app.BuildLogsRequest{Build: "build-1"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer stream.Close()
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			fmt.Println("end")
			return
		}
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println("offset", m.Offset)
	}

	// Output:
	// offset 1
	// offset 2
	// offset 3
	// end
}
