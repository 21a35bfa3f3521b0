package command

import (
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
}

// AddFlags defines the flags.
func (f *EgressFlags) AddFlags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.Mode, "egress", "", "what it may reach: all, list or none; default all, and list with --allow")
	cmd.Flags().StringArrayVar(&f.Allow, "allow", nil, "with list: a network, an address, a domain or *.DOMAIN that it may reach")
	cmd.Flags().StringArrayVar(&f.Deny, "deny", nil, "a network, an address, a domain or *.DOMAIN that it may not reach")
	_ = cmd.RegisterFlagCompletionFunc("egress", func(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return []string{"all", "list", "none"}, cobra.ShellCompDirectiveNoFileComp
	}) // fails only for flags that do not exist
}

// Policy returns the policy of the flags; nil without flags.
func (f *EgressFlags) Policy() *sandbox.Egress {
	if f.Mode == "" && len(f.Allow) == 0 && len(f.Deny) == 0 {
		return nil
	}
	e := &sandbox.Egress{Mode: sandbox.EgressMode(f.Mode), Allow: f.Allow, Deny: f.Deny}
	switch {
	case f.Mode != "":
	case len(f.Allow) > 0:
		e.Mode = sandbox.EgressModeList
	default:
		e.Mode = sandbox.EgressModeAll
	}
	return e
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
	req.Egress = f.Policy()
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
