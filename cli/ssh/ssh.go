// Package ssh has `r ssh` and `r ssh-config`, which log in to sandboxes with the
// system's ssh, and `r ssh key`: the public keys that may log in with any SSH
// client.
package ssh

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	gossh "golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/api/server"
	"miren.dev/runtime/cli/clientconfig"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/pkg/errs"
)

type options struct {
	*command.Env
	address string
	tty     bool
	none    bool
	local   []string
	remote  []string
	dynamic []string
}

// New makes the command.
func New(e *command.Env) *cobra.Command {
	o := &options{Env: e}
	cmd := &cobra.Command{
		Use:   "ssh SANDBOX [-- COMMAND...]",
		Short: "Log in to a sandbox with ssh",
		Long: `Runs the system's ssh, with a key that exists in memory only and a certificate for this sandbox that is valid for ten
minutes. The server must listen for SSH clients: r server start --ssh-address HOST:PORT. As with ssh, a shell in the
sandbox interprets COMMAND. A paused sandbox is resumed.`,
		Example:           "  r ssh sb-4k2j\n  r ssh sb-4k2j -- 'make test 2>&1 | tail'\n  r ssh sb-4k2j -N -L 8080:localhost:80",
		Args:              command.Args(1, -1, "SANDBOX"),
		ValidArgsFunction: command.CompleteFirst(e, sandbox.SandboxKind),
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args[0], args[1:]) },
	}
	addressFlag(cmd, &o.address)
	f := cmd.Flags()
	f.BoolVarP(&o.tty, "tty", "t", false, "run COMMAND on a terminal")
	f.BoolVarP(&o.none, "no-command", "N", false, "run no command: only forward ports")
	f.StringArrayVarP(&o.local, "local-forward", "L", nil, "forward a local port: [BIND:]PORT:localhost:PORT")
	f.StringArrayVarP(&o.remote, "remote-forward", "R", nil, "forward a port of the sandbox: PORT:HOST:PORT")
	f.StringArrayVarP(&o.dynamic, "dynamic-forward", "D", nil, "local port of a SOCKS server: [BIND:]PORT")
	cmd.AddCommand(newKey(e), newHostKey(e))
	return cmd
}

func addressFlag(cmd *cobra.Command, address *string) {
	cmd.Flags().StringVar(address, "address", "", "host:port at which the SSH server is reached; default: the address that the server reports")
}

// access is what an SSH client needs to log in.
type access struct {
	sandbox     *sandbox.Sandbox // nil: to push to apps
	certificate *gossh.Certificate
	host, port  string
	alias       string // under which the host keys are known
	knownHosts  string // content of a file for them
}

// request asks the server for a certificate for a key and a sandbox.
func request(ctx context.Context, e *command.Env, name, address string, key gossh.PublicKey) (*access, error) {
	s, err := command.Find[sandbox.Sandbox](ctx, e, name)
	if err != nil {
		return nil, err
	}
	c, err := e.Connect(ctx)
	if err != nil {
		return nil, err
	}
	resp, err := server.NewSSHClient(c).IssueCertificate(ctx, &server.IssueSSHCertificateRequest{
		Sandbox: s.GetID(), PublicKey: string(gossh.MarshalAuthorizedKey(key)),
	})
	if err != nil {
		return nil, err
	}
	return newAccess(e, resp, s, address)
}

// requestPush asks the server for a certificate for a key that pushes to apps.
func requestPush(ctx context.Context, e *command.Env, address string, key gossh.PublicKey) (*access, error) {
	c, err := e.Connect(ctx)
	if err != nil {
		return nil, err
	}
	resp, err := server.NewSSHClient(c).IssuePushCertificate(ctx, &server.IssuePushCertificateRequest{PublicKey: string(gossh.MarshalAuthorizedKey(key))})
	if err != nil {
		return nil, err
	}
	return newAccess(e, resp, nil, address)
}

func newAccess(e *command.Env, resp *server.IssueSSHCertificateResponse, s *sandbox.Sandbox, address string) (*access, error) {
	pub, _, _, _, err := gossh.ParseAuthorizedKey([]byte(resp.Certificate))
	if err != nil {
		return nil, errs.New(errs.Internal, "the certificate of the server: %w", err)
	}
	cert, ok := pub.(*gossh.Certificate)
	if !ok {
		return nil, errs.New(errs.Internal, "the server sent a %s and no certificate", pub.Type())
	}
	a := &access{sandbox: s, certificate: cert, alias: "runtime-" + resp.Instance}
	if address == "" {
		if address, err = reachable(e, resp.Address); err != nil {
			return nil, err
		}
	}
	if a.host, a.port, err = net.SplitHostPort(address); err != nil {
		return nil, exit.Usagef("%q is no address of an SSH server: give it as HOST:PORT", address)
	}
	for _, k := range resp.HostKeys {
		a.knownHosts += a.alias + " " + k + "\n"
	}
	return a, nil
}

// reachable returns the address at which this machine reaches a listener of the
// server.
func reachable(e *command.Env, listener string) (string, error) {
	host, port, err := net.SplitHostPort(listener)
	if err != nil {
		return "", errs.New(errs.Internal, "the server listens on %q", listener)
	}
	if ip := net.ParseIP(host); ip == nil || !ip.IsUnspecified() {
		return listener, nil
	}
	t, err := e.Target()
	if err != nil {
		return "", err
	}
	host = "127.0.0.1"
	if t.TLS != nil {
		if host, _, err = net.SplitHostPort(t.Address); err != nil {
			return "", err
		}
	}
	return net.JoinHostPort(host, port), nil
}

func (o *options) run(ctx context.Context, name string, argv []string) error {
	program, err := exec.LookPath("ssh")
	if err != nil {
		return errs.New(errs.FailedPrecondition, "there is no program ssh").WithHint("install OpenSSH's client, or use `r sandbox connect`")
	}
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return err
	}
	signer, err := gossh.NewSignerFromKey(private)
	if err != nil {
		return err
	}
	a, err := request(ctx, o.Env, name, o.address, signer.PublicKey())
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "r-ssh-")
	if err != nil {
		return errs.New(errs.FailedPrecondition, "%w", err)
	}
	defer os.RemoveAll(dir)
	known := filepath.Join(dir, "known_hosts")
	if err := os.WriteFile(known, []byte(a.knownHosts), 0o600); err != nil {
		return errs.New(errs.FailedPrecondition, "%w", err)
	}
	socket := filepath.Join(dir, "agent")
	stop, err := serveAgent(socket, agent.AddedKey{PrivateKey: private, Certificate: a.certificate})
	if err != nil {
		return err
	}
	defer stop()
	// Without ctx: an interrupt is for the remote process, and reaches ssh too.
	cmd := exec.Command(program, o.args(a, known, socket, argv)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	err = cmd.Run()
	if e := new(exec.ExitError); errors.As(err, &e) {
		if code := e.ExitCode(); code > 0 {
			return exit.With(code, nil)
		}
		return exit.With(exit.Failed, nil) // a signal ended it
	}
	return err
}

// args returns the arguments of ssh. The configuration of the user is not read:
// its other hosts and keys are no concern of this one.
func (o *options) args(a *access, known, socket string, argv []string) []string {
	args := []string{"-F", "none", "-p", a.port}
	for _, s := range []string{
		"IdentityFile=none", "IdentityAgent=" + socket, "PreferredAuthentications=publickey", "HostKeyAlias=" + a.alias,
		"UserKnownHostsFile=" + known, "GlobalKnownHostsFile=none", "StrictHostKeyChecking=yes", "CheckHostIP=no", "ForwardAgent=no", "ForwardX11=no",
		"ServerAliveInterval=30",
	} {
		args = append(args, "-o", s)
	}
	if o.tty {
		args = append(args, "-t")
	}
	if o.none {
		args = append(args, "-N")
	}
	for _, f := range o.local {
		args = append(args, "-L", f)
	}
	for _, f := range o.remote {
		args = append(args, "-R", f)
	}
	for _, f := range o.dynamic {
		args = append(args, "-D", f)
	}
	args = append(args, "-l", string(a.sandbox.ID), "--", a.host)
	return append(args, argv...)
}

// serveAgent serves an SSH agent with one key on a unix socket, until stop is
// called.
func serveAgent(path string, key agent.AddedKey) (stop func(), err error) {
	keys := agent.NewKeyring()
	if err := keys.Add(key); err != nil {
		return nil, err
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, errs.New(errs.FailedPrecondition, "%w", err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				_ = agent.ServeAgent(keys, c) // it ends with the connection
			})
		}
	})
	return func() {
		_ = l.Close()
		wg.Wait() // ssh, the only client, has ended
	}, nil
}

// directory returns the directory for the files of `r ssh-config`, which exists.
func directory() (string, error) {
	path, err := clientconfig.Path()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(filepath.Dir(path), "ssh")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", errs.New(errs.FailedPrecondition, "%w", err)
	}
	return dir, nil
}

// valid reports whether a certificate is valid for some time yet.
func valid(c *gossh.Certificate) bool {
	return time.Until(time.Unix(int64(c.ValidBefore), 0)) > time.Minute
}

// quote quotes a word for a shell, if need be.
func quote(s string) string {
	if s != "" && !strings.ContainsAny(s, " \t\n'\"\\$`;&|<>()*?[]{}~#!") {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// line prints a line of a configuration of ssh.
func line(name, value string) string { return fmt.Sprintf("  %s %s\n", name, value) }
