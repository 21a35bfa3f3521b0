package main

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"

	"github.com/BurntSushi/toml"
	"github.com/containerd/typeurl/v2"
	"google.golang.org/protobuf/types/known/anypb"
	"gvisor.dev/gvisor/pkg/shim/v1/runtimeoptions"
)

// config is the part that this package reads of the file that the runtime
// options name.
type config struct {
	Flags   map[string]string `toml:"runsc_config"`
	Runtime struct {
		CABundle       string `toml:"ca_bundle"`
		RestoreNetwork bool   `toml:"restore_network"`
	} `toml:"runtime"`
	Limits limits `toml:"limits"`
}

// readConfig reads the file named by the runtime options, which may be nil or name none.
func readConfig(options *anypb.Any) (config, error) {
	var c config
	if options == nil {
		return c, nil
	}
	var o runtimeoptions.Options
	if err := typeurl.UnmarshalTo(options, &o); err != nil {
		return c, fmt.Errorf("runtime options: %w", err)
	}
	if o.GetConfigPath() == "" {
		return c, nil
	}
	if _, err := toml.DecodeFile(o.GetConfigPath(), &c); err != nil {
		return c, fmt.Errorf("runtime options: read %s: %w", o.GetConfigPath(), err)
	}
	return c, nil
}

// caBundle returns the path of the CA bundle that containers get; empty: none.
func (c config) caBundle() (string, error) {
	bundle := c.Runtime.CABundle
	if bundle == "" {
		return "", nil
	}
	if !filepath.IsAbs(bundle) {
		return "", fmt.Errorf("the CA bundle's path %q is not absolute", bundle)
	}
	if _, err := os.Stat(bundle); err != nil {
		return "", fmt.Errorf("CA bundle: %w", err)
	}
	return bundle, nil
}

// rootIsPlain reports whether the container writes to its rootfs itself, not to an overlay over it.
func (c config) rootIsPlain(annotations map[string]string) bool {
	overlay := c.Flags["overlay2"]
	if c.Flags["allow-flag-override"] == "true" {
		overlay = cmp.Or(annotations[flagPrefix+"overlay2"], overlay)
	}
	return overlay == "none"
}
