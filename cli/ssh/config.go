package ssh

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	gossh "golang.org/x/crypto/ssh"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/pkg/atomicfile"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/text"
)

// gitUser is the user name at the server of clients that push to apps.
const gitUser = "git"

type configOptions struct {
	*command.Env
	address string
	host    string
	renew   string // path of the private key
	git     bool
}

// NewConfig makes the command ssh-config.
func NewConfig(e *command.Env) *cobra.Command {
	o := &configOptions{Env: e}
	cmd := &cobra.Command{
		Use:   "ssh-config SANDBOX | --git",
		Short: "Print a configuration with which ssh, scp, editors and git push reach the server",
		Long: `Prints a block for ~/.ssh/config, with which every program that uses OpenSSH reaches the sandbox as HOST. It makes a key
in the directory of the client configuration; each use renews its certificate, which is valid for ten minutes.

With --git, git reaches the apps of the server as ssh://HOST/APP.git or ssh://HOST/PROJECT/APP.git; HOST is runtime if
--host does not say otherwise. A push of the app's branch deploys it.`,
		Example: "  r ssh-config sb-4k2j --host work >>~/.ssh/config && ssh work\n  r ssh-config --git >>~/.ssh/config\n  git remote add runtime ssh://runtime/shop.git && git push runtime main",
		Args: func(cmd *cobra.Command, args []string) error {
			if o.git {
				return command.Args(0, 0)(cmd, args)
			}
			return command.Args(1, 1, "SANDBOX")(cmd, args)
		},
		ValidArgsFunction: command.CompleteFirst(e, sandbox.SandboxKind),
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), strings.Join(args, "")) },
	}
	addressFlag(cmd, &o.address)
	cmd.Flags().StringVar(&o.host, "host", "", "name of the host in the configuration; default: the sandbox's name or id, or runtime")
	cmd.Flags().BoolVar(&o.git, "git", false, "for git push to apps, and no sandbox")
	cmd.Flags().StringVar(&o.renew, "renew", "", "only renew the certificate of this private key; for the printed configuration")
	return cmd
}

func (o *configOptions) run(ctx context.Context, name string) error {
	if c, err := readCertificate(o.renew + "-cert.pub"); o.renew != "" && err == nil && valid(c) {
		return nil
	}
	// The key for git push is named like the host, since each server has its own.
	user, host, argument, file := gitUser, "runtime", "--git", "push-"+text.Name(cmp.Or(o.host, "runtime"), app.MaxAppName)
	if !o.git {
		s, err := command.Find[sandbox.Sandbox](ctx, o.Env, name)
		if err != nil {
			return err
		}
		user, host, argument, file = string(s.ID), cmp.Or(s.Name, string(s.ID)), string(s.ID), string(s.ID)
	}
	path := o.renew
	if path == "" {
		dir, err := directory()
		if err != nil {
			return err
		}
		path = filepath.Join(dir, file)
	}
	key, err := openKey(path)
	if err != nil {
		return err
	}
	var a *access
	if o.git {
		a, err = requestPush(ctx, o.Env, o.address, key)
	} else {
		a, err = request(ctx, o.Env, user, o.address, key)
	}
	if err != nil {
		return err
	}
	known := filepath.Join(filepath.Dir(path), "known_hosts-"+a.alias)
	for file, content := range map[string]string{path + "-cert.pub": string(gossh.MarshalAuthorizedKey(a.certificate)), known: a.knownHosts} {
		if err := atomicfile.Write(file, []byte(content), 0o600); err != nil {
			return errs.New(errs.FailedPrecondition, "%w", err)
		}
	}
	if o.renew != "" {
		return nil
	}
	renew, err := o.renewal(argument, path)
	if err != nil {
		return err
	}
	host = cmp.Or(o.host, host)
	text := "Host " + host + "\n"
	for _, l := range [][2]string{
		{"HostName", a.host}, {"Port", a.port}, {"User", user}, {"IdentityFile", `"` + path + `"`}, {"CertificateFile", `"` + path + `-cert.pub"`},
		{"IdentitiesOnly", "yes"}, {"HostKeyAlias", a.alias}, {"UserKnownHostsFile", `"` + known + `"`}, {"StrictHostKeyChecking", "yes"},
		{"CheckHostIP", "no"}, {"ForwardAgent", "no"}, {"ServerAliveInterval", "30"},
	} {
		text += line(l[0], l[1])
	}
	// ssh runs the command while it reads its configuration, before it reads the
	// certificate.
	text += "Match originalhost " + host + ` exec "` + renew + "\"\n"
	if o.JSON {
		return o.PrintJSON(map[string]string{"host": host, "config": text})
	}
	o.Printf("%s", text)
	return nil
}

// renewal returns the command line with which this program renews the
// certificate of a key.
func (o *configOptions) renewal(argument, key string) (string, error) {
	program, err := os.Executable()
	if err != nil {
		return "", errs.New(errs.FailedPrecondition, "%w", err)
	}
	opts := o.Options.Env() // of the environment too, which editors do not have
	words := []string{program, "--quiet"}
	for _, f := range [][2]string{{"--server", opts.Server}, {"--cluster", opts.Cluster}, {"--state-dir", opts.StateDir}, {"--run-dir", opts.RunDir}} {
		if f[1] != "" {
			words = append(words, f[0], f[1])
		}
	}
	if o.address != "" {
		words = append(words, "--address", o.address)
	}
	words = append(words, "ssh-config", "--renew", key, argument)
	for i, w := range words {
		words[i] = quote(w)
	}
	return strings.Join(words, " "), nil
}

// openKey reads the public key of a private key, and makes both.
func openKey(path string) (gossh.PublicKey, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		_, private, err := ed25519.GenerateKey(rand.Reader)
		if err != nil {
			return nil, err
		}
		block, err := gossh.MarshalPrivateKey(private, "")
		if err != nil {
			return nil, err
		}
		b = pem.EncodeToMemory(block)
		if err := atomicfile.Write(path, b, 0o600); err != nil {
			return nil, errs.New(errs.FailedPrecondition, "%w", err)
		}
	} else if err != nil {
		return nil, errs.New(errs.FailedPrecondition, "%w", err)
	}
	signer, err := gossh.ParsePrivateKey(b)
	if err != nil {
		return nil, errs.New(errs.FailedPrecondition, "%s: %w", path, err).WithHint("remove the file, and another key is made")
	}
	return signer.PublicKey(), nil
}

func readCertificate(path string) (*gossh.Certificate, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	key, _, _, _, err := gossh.ParseAuthorizedKey(b)
	if err != nil {
		return nil, err
	}
	c, ok := key.(*gossh.Certificate)
	if !ok {
		return nil, errs.New(errs.FailedPrecondition, "%s holds no certificate", path)
	}
	return c, nil
}
