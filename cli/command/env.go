// Package command has the parts that the commands of the command line share:
// the global flags, the connection to the server, arguments that default to the
// app of the current folder, and lists that can be watched.
package command

import (
	"cmp"
	"context"
	"os"
	"sync"

	"github.com/spf13/pflag"

	"miren.dev/runtime/cli/clientconfig"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/pkg/rpc"
)

// DefaultProject is the project of commands that name none.
const DefaultProject = "default"

// Env is passed to every command: the console and the connection to the server.
type Env struct {
	*console.Console
	Options clientconfig.Options // values of the flags
	project string
	lists   []string // commands that list, such as "r app list"

	mu     sync.Mutex
	target *clientconfig.Target
	client *rpc.Client
}

// New returns an Env without flags.
func New(c *console.Console) *Env { return &Env{Console: c} }

// AddFlags defines the global flags.
func (e *Env) AddFlags(f *pflag.FlagSet) {
	f.StringVar(&e.Options.Server, "server", "", "address of the server: unix:///path/server.sock or host:port (RUNTIME_SERVER)")
	f.StringVar(&e.Options.Cluster, "cluster", "", "cluster of the client configuration, see r cluster (RUNTIME_CLUSTER)")
	f.StringVar(&e.Options.StateDir, "state-dir", "", "state directory of a server of this machine (RUNTIME_STATE_DIR)")
	f.StringVar(&e.Options.RunDir, "run-dir", "", "directory of the sockets of servers of this machine (RUNTIME_RUN_DIR)")
	f.StringVarP(&e.project, "project", "p", "", "project (RUNTIME_PROJECT; default: the cluster's, else \"default\")")
	f.BoolVar(&e.JSON, "json", e.JSON, "print JSON: one document, or one line per event")
	f.Func("jq", "print what an `expression` of jq makes of the JSON; strings without quotes", e.SetQuery)
	f.BoolVarP(&e.Quiet, "quiet", "q", false, "print no progress and no remarks")
}

// Target returns the server of the command.
func (e *Env) Target() (*clientconfig.Target, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.targetLocked()
}

// Use makes the server that o names the one of the command, which is not
// connected yet.
func (e *Env) Use(o clientconfig.Options) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.Options, e.target = o, nil
}

func (e *Env) targetLocked() (*clientconfig.Target, error) {
	if e.target == nil {
		t, err := clientconfig.Resolve(e.Options.Env())
		if err != nil {
			return nil, err
		}
		e.target = t
	}
	return e.target, nil
}

// Connect returns the connection to the server, the same each time.
func (e *Env) Connect(ctx context.Context) (*rpc.Client, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.client != nil {
		return e.client, nil
	}
	t, err := e.targetLocked()
	if err != nil {
		return nil, err
	}
	e.client, err = t.Connect(ctx)
	return e.client, err
}

// Close ends the connection.
func (e *Env) Close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.client != nil {
		e.client.Close()
		e.client = nil
	}
}

// GivenProject returns the project that --project names, empty for none.
func (e *Env) GivenProject() string { return e.project }

// Project returns the project of the command: from --project, RUNTIME_PROJECT,
// the cluster, or the default.
func (e *Env) Project() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	fromCluster := ""
	if t, err := e.targetLocked(); err == nil { // Connect returns the error
		fromCluster = t.Project
	}
	return cmp.Or(e.project, os.Getenv("RUNTIME_PROJECT"), fromCluster, DefaultProject)
}
