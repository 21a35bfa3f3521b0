package cni

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"

	"miren.dev/runtime/pkg/errs"
)

// maxOutput bounds the output of a plugin.
const maxOutput = 1 << 20

// executor is libcni's way to run plugins.
type executor struct {
	version.PluginDecoder
	plugin Plugin
}

var _ invoke.Exec = (*executor)(nil)

// FindInPath returns the path of a plugin; that of ours is its type.
func (e *executor) FindInPath(plugin string, dirs []string) (string, error) {
	if plugin == Type {
		return Type, nil
	}
	path, err := invoke.FindInPath(plugin, dirs)
	if err != nil {
		return "", fmt.Errorf("plugin %s is in none of %s", plugin, strings.Join(dirs, ", "))
	}
	return path, nil
}

// ExecPlugin runs a plugin.
func (e *executor) ExecPlugin(ctx context.Context, path string, conf []byte, environ []string) ([]byte, error) {
	if path == Type {
		return e.call(ctx, conf, environ)
	}
	var stdout, stderr limited
	cmd := exec.CommandContext(ctx, path)
	cmd.Env = pluginEnv(environ)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(conf), &stdout, &stderr
	cmd.WaitDelay = time.Second
	// It ends with the server: the next one removes what it made, and nothing may be
	// made after that. The kernel sends the signal when the starting thread ends.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := cmd.Run()
	if err == nil {
		return stdout.Bytes(), nil
	}
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	return nil, pluginError(filepath.Base(path), err, stdout.Bytes(), stderr.Bytes())
}

// pluginEnv returns CNI's variables and the search path: the server's own
// variables may be secret.
func pluginEnv(environ []string) []string {
	env := []string{"PATH=" + os.Getenv("PATH")}
	for _, e := range environ {
		if strings.HasPrefix(e, "CNI_") {
			env = append(env, e)
		}
	}
	return env
}

// pluginError names the failed plugin, with its message.
func pluginError(name string, err error, stdout, stderr []byte) error {
	said := &types.Error{}
	if json.Unmarshal(stdout, said) != nil || said.Msg == "" {
		said = &types.Error{Msg: err.Error()}
		if s := clip(stdout); s != "" {
			said.Msg += ": " + s
		}
	}
	said.Msg = name + ": " + said.Msg
	if s := clip(stderr); s != "" {
		said.Details = strings.TrimPrefix(said.Details+"; ", "; ") + "it wrote: " + s
	}
	return said
}

// call is one command for the plugin of this process.
func (e *executor) call(ctx context.Context, conf []byte, environ []string) ([]byte, error) {
	variables := map[string]string{}
	for _, v := range environ {
		if name, value, ok := strings.Cut(v, "="); ok && strings.HasPrefix(name, "CNI_") {
			variables[name] = value
		}
	}
	a := Args{ID: variables["CNI_CONTAINERID"], NetNS: variables["CNI_NETNS"]}
	var c types.PluginConf
	if err := json.Unmarshal(conf, &c); err != nil {
		return nil, fmt.Errorf("%s: configuration: %w", Type, err)
	}
	switch command := variables["CNI_COMMAND"]; command {
	case "ADD":
		r, err := e.plugin.Add(ctx, a)
		if err != nil {
			return nil, err
		}
		versioned, err := r.GetAsVersion(c.CNIVersion)
		if err != nil {
			return nil, errs.New(errs.FailedPrecondition, "%s: %w", Type, err)
		}
		return json.Marshal(versioned)
	case "DEL":
		return nil, e.plugin.Del(ctx, a)
	case "CHECK":
		if err := version.ParsePrevResult(&c); err != nil {
			return nil, fmt.Errorf("%s: previous result: %w", Type, err)
		}
		if c.PrevResult == nil {
			return nil, fmt.Errorf("%s: CHECK without a previous result", Type)
		}
		prev, err := current.NewResultFromResult(c.PrevResult)
		if err != nil {
			return nil, fmt.Errorf("%s: previous result: %w", Type, err)
		}
		return nil, e.plugin.Check(ctx, a, prev)
	case "GC", "STATUS": // its objects are found without CNI
		return nil, nil
	case "VERSION":
		return json.Marshal(version.All)
	default:
		return nil, fmt.Errorf("%s: unknown command %q", Type, command)
	}
}

// limited keeps the first maxOutput bytes.
type limited struct{ bytes.Buffer }

func (l *limited) Write(b []byte) (int, error) {
	if l.Len()+len(b) > maxOutput {
		return 0, errors.New("too much output")
	}
	return l.Buffer.Write(b)
}
