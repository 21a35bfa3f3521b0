package route

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/entity"
)

// tcp are the flags of a route of a port.
type tcp struct {
	port  int64
	allow []string
	idle  time.Duration
	proxy bool
	tls   bool
}

func (o *tcp) addPort(cmd *cobra.Command) {
	cmd.Flags().Int64Var(&o.port, "tcp", 0, "port of the ingress, of those that an operator gives to projects (ingress.tcp_ports), instead of HOST")
}

func (o *tcp) addFlags(cmd *cobra.Command) {
	o.addPort(cmd)
	f := cmd.Flags()
	f.StringSliceVar(&o.allow, "allow", nil, "with --tcp: networks whose clients are admitted; default all")
	f.DurationVar(&o.idle, "idle", 0, "with --tcp: time without a byte after which a connection is ended; default 1h")
	f.BoolVar(&o.tls, "tls", false, "with --tcp: the ingress ends TLS, with the certificate of the project for the name that the client asks for")
	f.BoolVar(&o.proxy, "proxy-protocol", false, "with --tcp: connections to the service begin with a PROXY header that names the client")
}

// host returns the host of a command, "" if it names a port instead.
func (o *tcp) host(cmd *cobra.Command, args []string) (string, error) {
	given := cmd.Flags().Changed("tcp")
	if given == (len(args) == 1) {
		return "", exit.Usagef("give HOST or --tcp PORT")
	}
	if given {
		if cmd.Flags().Changed("path") {
			return "", exit.Usagef("--path is for routes of a host, and a port has no paths")
		}
		return "", nil
	}
	for _, name := range []string{"allow", "idle", "proxy-protocol", "tls"} {
		if f := cmd.Flags().Lookup(name); f != nil && f.Changed {
			return "", exit.Usagef("--%s needs --tcp; `r route configure` sets limits of a host", name)
		}
	}
	if args[0] == "" {
		return "", exit.Usagef("HOST is empty")
	}
	return args[0], nil
}

func (o *options) setTCP(ctx context.Context, c app.RoutesClient, name string) error {
	req := &app.SetTCPRouteRequest{Project: o.Project(), Port: o.tcp.port, App: name, Service: o.service, Allow: o.tcp.allow, ProxyProtocol: o.tcp.proxy, TLS: o.tcp.tls}
	if o.tcp.idle != 0 {
		req.IdleTimeout = &o.tcp.idle
	}
	resp, err := c.SetTCP(ctx, req)
	if err != nil {
		return err
	}
	r, err := entity.Decode[app.TCPRoute](&resp.Route)
	if err != nil {
		return err
	}
	if o.JSON {
		return o.PrintJSON(r)
	}
	o.Printf("%s routed port %d to %s of %s\n", o.Paint(console.Green, "✓"), r.Spec.Port, r.Spec.Service, name)
	return nil
}

func (o *options) deleteTCP(ctx context.Context) error {
	c, err := o.client(ctx)
	if err != nil {
		return err
	}
	if err := c.DeleteTCP(ctx, &app.DeleteTCPRouteRequest{Project: o.Project(), Port: o.tcp.port}); err != nil {
		return err
	}
	if o.JSON {
		return o.PrintJSON(map[string]int64{"deleted": o.tcp.port})
	}
	o.Printf("%s deleted port %d\n", o.Paint(console.Green, "✓"), o.tcp.port)
	return nil
}
