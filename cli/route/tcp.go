package route

import (
	"context"
	"fmt"
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
	name  string
	pass  bool
}

func (o *tcp) addPort(cmd *cobra.Command) {
	cmd.Flags().Int64Var(&o.port, "tcp", 0, "port of the ingress, of those that an operator gives to projects (ingress.tcp_ports), instead of HOST")
	cmd.Flags().StringVar(&o.name, "host", "", "with --tcp: the route of the connections whose TLS names this server (SNI), exact or *.suffix; a port can have several")
}

func (o *tcp) addFlags(cmd *cobra.Command) {
	o.addPort(cmd)
	f := cmd.Flags()
	f.StringSliceVar(&o.allow, "allow", nil, "with --tcp: networks whose clients are admitted; default all")
	f.DurationVar(&o.idle, "idle", 0, "with --tcp: time without a byte after which a connection is ended; default 1h")
	f.BoolVar(&o.tls, "tls", false, "with --tcp: the ingress ends TLS, with the certificate of the project for the name that the client asks for")
	f.BoolVar(&o.pass, "passthrough", false, "with --tcp and --host: the service ends TLS, and the ingress only reads the name")
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
		if o.name != "" && cmd.Flags().Lookup("tls") != nil && !o.tls && !o.pass {
			return "", exit.Usagef("--host needs --tls, by which the ingress ends TLS, or --passthrough, by which the service does")
		}
		if o.pass && o.name == "" {
			return "", exit.Usagef("--passthrough needs --host")
		}
		return "", nil
	}
	for _, name := range []string{"allow", "idle", "proxy-protocol", "tls", "host", "passthrough"} {
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
	req := &app.SetTCPRouteRequest{Project: o.Project(), Port: o.tcp.port, App: name, Service: o.service, Allow: o.tcp.allow, ProxyProtocol: o.tcp.proxy, TLS: o.tcp.tls,
		Host: o.tcp.name, Passthrough: o.tcp.pass}
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
	o.Printf("%s routed %s to %s of %s\n", o.Paint(console.Green, "✓"), portOf(r.Spec.Port, r.Spec.Host), r.Spec.Service, name)
	return nil
}

func (o *options) deleteTCP(ctx context.Context) error {
	c, err := o.client(ctx)
	if err != nil {
		return err
	}
	if err := c.DeleteTCP(ctx, &app.DeleteTCPRouteRequest{Project: o.Project(), Port: o.tcp.port, Host: o.tcp.name}); err != nil {
		return err
	}
	if o.JSON {
		if o.tcp.name != "" {
			return o.PrintJSON(map[string]any{"deleted": o.tcp.port, "host": o.tcp.name})
		}
		return o.PrintJSON(map[string]int64{"deleted": o.tcp.port})
	}
	o.Printf("%s deleted %s\n", o.Paint(console.Green, "✓"), portOf(o.tcp.port, o.tcp.name))
	return nil
}

func portOf(port int64, host string) string {
	if host == "" {
		return fmt.Sprintf("port %d", port)
	}
	return fmt.Sprintf("%s at port %d", host, port)
}
