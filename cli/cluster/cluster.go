// Package cluster has `r cluster`: the servers that this client knows, kept in
// the client configuration (package clientconfig).
package cluster

import (
	"regexp"
	"time"

	"github.com/spf13/cobra"

	"miren.dev/runtime/cli/clientconfig"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/exit"
)

// New makes the commands.
func New(e *command.Env) *cobra.Command {
	cmd := command.Group("cluster", "Remote servers that this client knows", newList(e), newAdd(e), newUse(e), newRemove(e))
	cmd.Long = `Names remote servers, with the certificates for them, in the client configuration (~/.config/runtime/clientconfig.yaml).
Commands go to the server that --server or --cluster names, else RUNTIME_SERVER or RUNTIME_CLUSTER, else to the current
cluster, else to the server of this machine.`
	return cmd
}

// load reads the client configuration of this user.
func load() (*clientconfig.Config, error) {
	path, err := clientconfig.Path()
	if err != nil {
		return nil, err
	}
	return clientconfig.Load(path)
}

// CompleteNames completes with the names of the clusters.
func CompleteNames(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
	cfg, err := load()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return cfg.Names(), cobra.ShellCompDirectiveNoFileComp
}

// completeFirst completes the first argument with the names of the clusters.
func completeFirst(cmd *cobra.Command, args []string, text string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return CompleteNames(cmd, args, text)
}

var validName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`)

func checkName(name string) error {
	if !validName.MatchString(name) {
		return exit.Usagef("%q cannot name a cluster: use up to 63 letters, digits, dots, dashes and underscores, beginning with a letter or digit", name)
	}
	return nil
}

// info is a cluster as --json prints it.
type info struct {
	Name      string     `json:"name"`
	Current   bool       `json:"current"`
	Server    string     `json:"server"`
	Project   string     `json:"project,omitempty"`
	Identity  string     `json:"identity,omitempty"`
	Expires   *time.Time `json:"certificate_expires_at,omitempty"`
	Complaint string     `json:"error,omitempty"` // reason why it cannot be used
}

// describe returns a cluster as the configuration has it, without connecting.
func describe(cfg *clientconfig.Config, name string) info {
	cl := cfg.Clusters[name]
	i := info{Name: name, Current: name == cfg.CurrentCluster, Server: cl.Server, Project: cl.Project, Identity: cl.Identity}
	t, err := cfg.Target(name)
	switch {
	case err != nil:
		i.Complaint = err.Error()
	case t.TLS != nil && len(t.TLS.Certificates) > 0:
		i.Expires = &t.TLS.Certificates[0].Leaf.NotAfter
	}
	return i
}
