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
		CA             string `toml:"ca"`
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

// caMode is how a container gets the host's CA bundle; the package comment explains the modes.
type caMode int

const (
	caOff caMode = iota
	caEnv
	caSystem
)

func parseCAMode(s string) (caMode, error) {
	switch s {
	case "off", "false":
		return caOff, nil
	case "env":
		return caEnv, nil
	case "system", "true":
		return caSystem, nil
	}
	return caOff, fmt.Errorf(`%q is none of "off", "env" and "system"`, s)
}

// caPolicy returns how a container with these annotations gets the CA bundle, and its path.
func (c config) caPolicy(annotations map[string]string, getenv func(string) string) (caMode, string, error) {
	bundle := cmp.Or(c.Runtime.CABundle, getenv("RUNTIME_CA_BUNDLE"))
	if bundle == "" {
		return caOff, "", nil
	}
	if !filepath.IsAbs(bundle) {
		return caOff, "", fmt.Errorf("the CA bundle's path %q is not absolute", bundle)
	}
	said := cmp.Or(annotations[caAnnotation], c.Runtime.CA)
	if said == "" && getenv("RUNTIME_CA_ALL") == "1" {
		said = "system"
	}
	if said == "" {
		return caOff, "", nil
	}
	mode, err := parseCAMode(said)
	if err != nil {
		return caOff, "", fmt.Errorf("how to give the CA bundle: %w", err)
	}
	if mode == caOff {
		return caOff, "", nil
	}
	if _, err := os.Stat(bundle); err != nil {
		return caOff, "", fmt.Errorf("CA bundle: %w", err)
	}
	if mode == caSystem && c.rootIsPlain(annotations) {
		mode = caEnv
	}
	return mode, bundle, nil
}

// rootIsPlain reports whether the container writes to its rootfs itself, not to an overlay over it.
func (c config) rootIsPlain(annotations map[string]string) bool {
	overlay := c.Flags["overlay2"]
	if c.Flags["allow-flag-override"] == "true" {
		overlay = cmp.Or(annotations[flagPrefix+"overlay2"], overlay)
	}
	return overlay == "none"
}
