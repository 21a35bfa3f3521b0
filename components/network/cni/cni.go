// Package cni connects sandboxes to a network that a CNI configuration list
// describes. Plugins are programs that libcni runs, except one, the plugin of
// type "runtime", which is a part of this process: it starts no program, so it
// costs no more than its work.
//
// The network is named after the installation, so that plugins which keep state
// by network (host-local keeps addresses) never remove that of other
// installations and programs. Connections are recorded in a directory that
// outlives a restart of the machine, as some plugins' state does; Sweep disconnects
// those that no sandbox has.
package cni

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"

	"miren.dev/runtime/pkg/errs"
)

// Type is the type of the plugin that is part of this process.
const Type = "runtime"

// Interface is the name of a sandbox's interface in its namespace.
const Interface = "eth0"

// timeout bounds one command, which may run several plugins.
const timeout = 60 * time.Second

// defaultList is used if a site has none of its own.
const defaultList = `{"cniVersion": "1.1.0", "name": "runtime", "plugins": [{"type": "runtime"}]}`

// Args are the arguments of a plugin.
type Args struct {
	ID    string // of the connection; unique
	NetNS string // path of its network namespace; may be missing or gone for Del
}

// Plugin is the plugin of type Type. Its methods have the meaning of CNI's commands.
type Plugin interface {
	Add(ctx context.Context, a Args) (*current.Result, error)
	// Del succeeds if there is nothing to disconnect.
	Del(ctx context.Context, a Args) error
	// Check returns an error if the machine differs from prev.
	Check(ctx context.Context, a Args, prev *current.Result) error
}

// Config of a Network.
type Config struct {
	File       string   // of the configuration list; empty: the plugin runtime alone
	Name       string   // of the installation
	PluginDirs []string // where plugins are, in order
	Dir        string   // for records of connections
	Plugin     Plugin
}

// Network is safe for concurrent use; calls for one id must not overlap.
type Network struct {
	list *libcni.NetworkConfigList
	cni  *libcni.CNIConfig
}

// Load reads the configuration list. InvalidArgument if it makes no sense.
func Load(c Config) (*Network, error) {
	b := []byte(defaultList)
	if c.File != "" {
		var err error
		if b, err = os.ReadFile(c.File); err != nil {
			return nil, errs.New(errs.FailedPrecondition, "network.conflist: %w", err).WithHint("name a file with a CNI configuration list, or remove the setting")
		}
	}
	bad := func(format string, args ...any) error {
		return errs.New(errs.InvalidArgument, "network.conflist: %s: %s", c.File, fmt.Sprintf(format, args...)).
			WithHint("it is a list as in https://www.cni.dev/docs/spec/ with cniVersion, name and plugins; each plugin needs a type")
	}
	list, err := libcni.NetworkConfFromBytes(b)
	if err != nil {
		return nil, bad("%v", err)
	}
	if len(list.Plugins) == 0 {
		return nil, bad("it names no plugins")
	}
	list.Name = c.Name + "-" + list.Name
	e := &executor{plugin: c.Plugin}
	n := &Network{list: list, cni: libcni.NewCNIConfigWithCacheDir(c.PluginDirs, c.Dir, e)}
	for i, p := range list.Plugins {
		if p.Network.Type == Type && i > 0 {
			return nil, bad("the plugin %s connects a sandbox, so it must be the first", Type)
		}
		if _, err := e.FindInPath(p.Network.Type, c.PluginDirs); err != nil {
			return nil, bad("%v", err)
		}
	}
	return n, nil
}

// Internal reports whether no program is run: the list has the plugin of this process only.
func (n *Network) Internal() bool {
	return len(n.list.Plugins) == 1 && n.list.Plugins[0].Network.Type == Type
}

func (n *Network) conf(a Args) *libcni.RuntimeConf {
	if _, err := os.Stat(a.NetNS); errors.Is(err, os.ErrNotExist) {
		a.NetNS = "" // which means to the plugins that it is gone
	}
	return &libcni.RuntimeConf{ContainerID: a.ID, NetNS: a.NetNS, IfName: Interface}
}

// Add connects a namespace, and returns its address. After an error, Del removes
// what was made.
func (n *Network) Add(ctx context.Context, a Args) (netip.Addr, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	result, err := n.cni.AddNetworkList(ctx, n.list, n.conf(a))
	if err != nil {
		return netip.Addr{}, explain("connect", err)
	}
	r, err := current.NewResultFromResult(result)
	if err != nil {
		return netip.Addr{}, errs.New(errs.FailedPrecondition, "the result of the CNI plugins: %w", err)
	}
	for _, ip := range r.IPs {
		// Of the sandbox's interface, not of the machine's.
		if ip.Interface != nil && (*ip.Interface < 0 || *ip.Interface >= len(r.Interfaces) || r.Interfaces[*ip.Interface].Sandbox == "") {
			continue
		}
		if addr, ok := netip.AddrFromSlice(ip.Address.IP); ok && addr.Unmap().Is4() {
			return addr.Unmap(), nil
		}
	}
	return netip.Addr{}, errs.New(errs.FailedPrecondition, "the CNI plugins gave the sandbox no IPv4 address").
		WithHint("the first plugin of network.conflist needs an ipam section, such as one of host-local")
}

// Del disconnects a namespace. It returns nil if it was not connected.
func (n *Network) Del(ctx context.Context, a Args) error {
	// The caller's end does not leave it half done.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
	defer cancel()
	rt := n.conf(a)
	// With the list by which it was connected, which the site may have changed since.
	if config, was, err := n.cni.GetNetworkListCachedConfig(n.list, rt); err == nil && config != nil {
		return explain("disconnect", n.del(ctx, n.list.Name, config, was))
	}
	found, err := n.cni.GetCachedAttachments(a.ID)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return errs.New(errs.Unavailable, "records of CNI: %w", err)
	}
	for _, f := range found {
		if f.ContainerID == a.ID {
			if err := n.del(ctx, f.Network, f.Config, rt); err != nil {
				return explain("disconnect", err)
			}
		}
	}
	if len(found) > 0 {
		return nil
	}
	return explain("disconnect", n.cni.DelNetworkList(ctx, n.list, rt))
}

func (n *Network) del(ctx context.Context, name string, config []byte, rt *libcni.RuntimeConf) error {
	list, err := libcni.NetworkConfFromBytes(config)
	if err != nil {
		return err
	}
	list.Name = name
	return n.cni.DelNetworkList(ctx, list, rt)
}

// Check returns an error if a connection is not as Add made it. It holds only
// until the sandbox is started: then runsc takes the address off the interface.
func (n *Network) Check(ctx context.Context, a Args) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return explain("check", n.cni.CheckNetworkList(ctx, n.list, n.conf(a)))
}

// Sweep disconnects everything but these ids, and has the plugins remove what they
// keep of others in the network of this installation.
func (n *Network) Sweep(ctx context.Context, ids []string) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	valid := map[string]bool{}
	args := &libcni.GCArgs{ValidAttachments: []types.GCAttachment{}}
	for _, id := range ids {
		valid[id] = true
		args.ValidAttachments = append(args.ValidAttachments, types.GCAttachment{ContainerID: id, IfName: Interface})
	}
	all, err := n.cni.GetCachedAttachments("")
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return errs.New(errs.Unavailable, "records of CNI: %w", err)
	}
	var failed error
	for _, f := range all {
		if !valid[f.ContainerID] {
			failed = errors.Join(failed, n.del(ctx, f.Network, f.Config, n.conf(Args{ID: f.ContainerID, NetNS: f.NetNS})))
		}
	}
	return explain("sweep", errors.Join(failed, n.cni.GCNetworkList(ctx, n.list, args)))
}

// Status returns an error if the plugins are not ready to connect anything.
func (n *Network) Status(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return explain("status", n.cni.GetStatusNetworkList(ctx, n.list))
}

// explain gives an error a class. libcni names the plugin.
func explain(what string, err error) error {
	if err == nil {
		return nil
	}
	var own *errs.Error
	if errors.As(err, &own) {
		return errs.Wrap(err, "CNI %s", what)
	}
	class := errs.Unavailable
	var failed *types.Error
	if errors.As(err, &failed) && failed.Code > 0 && failed.Code <= types.ErrInvalidNetworkConfig {
		class = errs.FailedPrecondition // a retry changes nothing
	}
	return errs.New(class, "CNI %s: %w", what, err)
}

// clip shortens the output of a plugin.
func clip(b []byte) string {
	const longest = 2 << 10
	s := strings.TrimSpace(string(b))
	if len(s) > longest {
		s = "..." + s[len(s)-longest:]
	}
	return s
}
