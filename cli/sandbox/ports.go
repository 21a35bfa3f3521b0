package sandbox

import (
	"context"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/pkg/errs"
)

func newPorts(e *command.Env) *cobra.Command {
	return &cobra.Command{
		Use:               "ports ID",
		Short:             "List the TCP ports on which processes of a sandbox listen",
		Args:              command.Args(1, 1, "ID"),
		ValidArgsFunction: command.CompleteFirst(e, sandbox.SandboxKind),
		RunE:              func(cmd *cobra.Command, args []string) error { return ports(cmd.Context(), e, args[0]) },
	}
}

func ports(ctx context.Context, e *command.Env, name string) error {
	s, c, err := target(ctx, e, name)
	if err != nil {
		return err
	}
	resp, err := c.Ports(ctx, &sandbox.SandboxRequest{Sandbox: s.GetID()})
	if err != nil {
		return err
	}
	if e.JSON {
		return e.PrintJSON(append([]int64{}, resp.Ports...)) // [] and not null
	}
	var rows [][]string
	for _, p := range resp.Ports {
		rows = append(rows, []string{strconv.FormatInt(p, 10)})
	}
	e.Table([]string{"PORT"}, rows)
	return nil
}

func newForward(e *command.Env) *cobra.Command {
	return &cobra.Command{
		Use:   "forward ID [LOCAL:]PORT...",
		Short: "Forward ports of this machine to ports of a sandbox",
		Long: `Listens on a TCP port of 127.0.0.1 for each port, and connects each connection to the port of the sandbox, on whatever
address a process listens there, without use of the sandbox's network. Without LOCAL it listens on the same port, with
LOCAL 0 on a free one. It ends with Ctrl-C.`,
		Example:           "  r sandbox forward sb-4k2j 8080\n  r sandbox forward sb-4k2j 3000:80 0:5432",
		Args:              command.Args(2, -1, "ID", "PORT"),
		ValidArgsFunction: command.CompleteFirst(e, sandbox.SandboxKind),
		RunE:              func(cmd *cobra.Command, args []string) error { return forward(cmd.Context(), e, args[0], args[1:]) },
	}
}

// forwarding is a port of this machine that leads to one of a sandbox.
type forwarding struct {
	*command.Env
	c       sandbox.SandboxesClient
	sandbox id.Sandbox
	port    int64
	l       net.Listener
}

// parseForward splits LOCAL:PORT, and PORT.
func parseForward(arg string) (local string, port int64, err error) {
	local, remote, ok := strings.Cut(arg, ":")
	if !ok {
		remote = local
	}
	port, perr := strconv.ParseInt(remote, 10, 32)
	n, lerr := strconv.ParseUint(local, 10, 16)
	if perr != nil || lerr != nil || port < 1 || port > sandbox.MaxPort {
		return "", 0, exit.Usagef("%q is no port: give it as PORT or LOCAL:PORT, 1 to %d", arg, sandbox.MaxPort)
	}
	return strconv.FormatUint(n, 10), port, nil
}

func forward(ctx context.Context, e *command.Env, name string, args []string) error {
	s, c, err := target(ctx, e, name)
	if err != nil {
		return err
	}
	var list []*forwarding
	defer func() {
		for _, f := range list {
			_ = f.l.Close() // serve closed it, or nothing was accepted
		}
	}()
	for _, arg := range args {
		local, port, err := parseForward(arg)
		if err != nil {
			return err
		}
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", local))
		if err != nil {
			return errs.New(errs.FailedPrecondition, "%w", err).WithHint("give another port, or 0 for a free one: 0:%d", port)
		}
		list = append(list, &forwarding{Env: e, c: c, sandbox: s.GetID(), port: port, l: l})
	}
	g, ctx := errgroup.WithContext(ctx)
	for _, f := range list {
		if err := f.announce(); err != nil {
			return err
		}
	}
	for _, f := range list {
		g.Go(func() error { return f.serve(ctx, g) })
	}
	return g.Wait()
}

// announce prints that the port listens.
func (f *forwarding) announce() error {
	if f.JSON {
		return f.PrintJSONLine(map[string]any{"event": "listening", "address": f.l.Addr().String(), "port": f.port})
	}
	f.Printf("%s -> %s:%d\n", f.l.Addr(), f.sandbox, f.port)
	return nil
}

// serve forwards connections until ctx ends.
func (f *forwarding) serve(ctx context.Context, g *errgroup.Group) error {
	defer context.AfterFunc(ctx, func() { _ = f.l.Close() })() // so that Accept returns
	for {
		conn, err := f.l.Accept()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			return errs.New(errs.Unavailable, "forward port %d: %w", f.port, err)
		}
		g.Go(func() error {
			if err := f.pass(ctx, conn); err != nil && !errs.Is(err, errs.Canceled) {
				f.Notef("port %d: %v\n", f.port, err)
			}
			return nil
		})
	}
}

// pass forwards one connection until the sandbox has ended its side, or the
// connection is lost.
func (f *forwarding) pass(ctx context.Context, conn net.Conn) error {
	defer conn.Close()
	st, err := f.c.Dial(ctx, &sandbox.DialRequest{Sandbox: f.sandbox, Port: f.port})
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer conn.Close() // so that the read below ends
	defer st.Close()
	wg.Go(func() {
		switch _, err := io.Copy(st.Writer(), conn); err {
		case nil:
			_ = st.CloseSend() // a call that has ended is reported below
		case io.EOF: // the call has ended; its output is still read
		default:
			_ = st.Close() // the connection was reset
		}
	})
	_, err = io.Copy(conn, st.Reader())
	return err
}
