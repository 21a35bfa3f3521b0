package command

import (
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/cli/exit"
)

// EgressFlags are the flags of a sandbox's network policy.
type EgressFlags struct {
	Mode        string
	Allow, Deny []string
	Inject      []sandbox.Injection
}

// AddFlags defines the flags.
func (f *EgressFlags) AddFlags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.Mode, "egress", "", "what it may reach: all, list or none; default all, and list with --allow")
	cmd.Flags().StringArrayVar(&f.Allow, "allow", nil, "with list: a network, an address, a domain or *.DOMAIN that it may reach")
	cmd.Flags().StringArrayVar(&f.Deny, "deny", nil, "a network, an address, a domain or *.DOMAIN that it may not reach")
	cmd.Flags().Var(ruleFlag{"name", f.injectSecret}, "inject-secret", "secret that the proxy adds to its requests to --host, and that it never has")
	cmd.Flags().Var(ruleFlag{"host", f.injectHost}, "host", "with --inject-secret, after it: host of the requests, or *.DOMAIN")
	cmd.Flags().Var(ruleFlag{"header", f.injectHeader}, "header", "with --inject-secret, after it: header with {} for the secret; default 'Authorization: Bearer {}'")
	cmd.Flags().Var(ruleFlag{"bool", f.injectPlain}, "plain-http", "with --inject-secret, after it: add it to requests by plain HTTP too")
	cmd.Flags().Lookup("plain-http").NoOptDefVal = "true"
	_ = cmd.RegisterFlagCompletionFunc("egress", func(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return []string{"all", "list", "none"}, cobra.ShellCompDirectiveNoFileComp
	}) // fails only for flags that do not exist
}

// ruleFlag is a flag that begins a rule, or says more about the last one.
type ruleFlag struct {
	typ string
	set func(string) error
}

// String, Set and Type implement pflag.Value.
func (ruleFlag) String() string       { return "" }
func (r ruleFlag) Set(s string) error { return r.set(s) }
func (r ruleFlag) Type() string       { return r.typ }

func (f *EgressFlags) injectSecret(name string) error {
	f.Inject = append(f.Inject, sandbox.Injection{Secret: name})
	return nil
}

// injected returns the rule of the last --inject-secret.
func (f *EgressFlags) injected() (*sandbox.Injection, error) {
	if len(f.Inject) == 0 {
		return nil, errors.New("it follows the --inject-secret that it is for")
	}
	return &f.Inject[len(f.Inject)-1], nil
}

func (f *EgressFlags) injectHost(host string) error {
	i, err := f.injected()
	if err != nil {
		return err
	}
	if i.Host != "" { // one more host of the same secret
		f.Inject = append(f.Inject, *i)
		i = &f.Inject[len(f.Inject)-1]
	}
	i.Host = host
	return nil
}

func (f *EgressFlags) injectHeader(header string) error {
	i, err := f.injected()
	if err != nil {
		return err
	}
	name, value, ok := strings.Cut(header, ":")
	if !ok || !strings.Contains(value, "{}") {
		return errors.New("write it like 'Authorization: Bearer {}'")
	}
	i.Header, i.Format = strings.TrimSpace(name), strings.TrimSpace(value)
	return nil
}

func (f *EgressFlags) injectPlain(s string) error {
	i, err := f.injected()
	if err == nil {
		i.PlainHTTP, err = strconv.ParseBool(s)
	}
	return err
}

// Policy returns the policy of the flags; nil without flags.
func (f *EgressFlags) Policy() (*sandbox.Egress, error) {
	if f.Mode == "" && len(f.Allow) == 0 && len(f.Deny) == 0 && len(f.Inject) == 0 {
		return nil, nil
	}
	for _, i := range f.Inject {
		if i.Host == "" {
			return nil, exit.Usagef("--inject-secret %s: say for which host it is with --host", i.Secret)
		}
	}
	e := &sandbox.Egress{Mode: sandbox.EgressMode(f.Mode), Allow: f.Allow, Deny: f.Deny, Inject: f.Inject}
	switch {
	case f.Mode != "":
	case len(f.Allow) > 0:
		e.Mode = sandbox.EgressModeList
	default:
		e.Mode = sandbox.EgressModeAll
	}
	return e, nil
}

// SandboxFlags are the flags of commands that make a sandbox.
type SandboxFlags struct {
	EgressFlags
	Volumes     []string
	IdleTimeout time.Duration
	AutoPause   bool
}

// AddFlags defines the flags.
func (f *SandboxFlags) AddFlags(cmd *cobra.Command) {
	f.EgressFlags.AddFlags(cmd)
	cmd.Flags().StringArrayVarP(&f.Volumes, "volume", "v", nil, "disk to mount, DISK:PATH or DISK:PATH:ro")
	cmd.Flags().DurationVar(&f.IdleTimeout, "idle-timeout", 0, "stop it after this time without an exec, a connection or an open file")
	cmd.Flags().BoolVar(&f.AutoPause, "auto-pause", false, "with --idle-timeout: pause it instead; its next exec continues it")
}

// Apply sets the policy of the flags in a request.
func (f *SandboxFlags) Apply(req *sandbox.RunRequest) error {
	policy, err := f.Policy()
	if err != nil {
		return err
	}
	req.Egress = policy
	if f.AutoPause && f.IdleTimeout == 0 {
		return exit.Usagef("--auto-pause needs --idle-timeout")
	}
	if f.IdleTimeout > 0 {
		req.IdleTimeout = &f.IdleTimeout
	}
	if f.AutoPause {
		req.OnIdle = sandbox.IdleActionPause
	}
	for _, v := range f.Volumes {
		name, path, ok := strings.Cut(v, ":")
		path, readOnly := strings.CutSuffix(path, ":ro")
		if !ok || name == "" || !strings.HasPrefix(path, "/") {
			return exit.Usagef("--volume %s: give it as DISK:/PATH or DISK:/PATH:ro", v)
		}
		req.Volumes = append(req.Volumes, sandbox.VolumeRequest{Disk: name, Path: path, ReadOnly: &readOnly})
	}
	return nil
}
