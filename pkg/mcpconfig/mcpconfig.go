// Package mcpconfig is the configuration of mcp-sandboxd. config.yml is the one
// place where keys are declared; configgen generates config.gen.go and
// docs/reference/mcp-sandboxd.md. Package configfile says where a key may come
// from.
package mcpconfig

import (
	"fmt"
	"net"
	"net/netip"
	"path/filepath"

	"miren.dev/runtime/pkg/config"
	"miren.dev/runtime/pkg/configfile"
	"miren.dev/runtime/pkg/errs"
)

// Key is one key.
type Key = configfile.Key[Config]

// Schema returns what a configuration may have. tool returns an error for a name
// that is neither that of a tool nor that of a group.
func Schema(tool func(string) error) *configfile.Schema[Config] {
	return &configfile.Schema[Config]{
		Keys: Keys, Hint: "`mcp-sandboxd --print-config` prints every key with its default",
		Checks: map[string]func(string) error{
			"server.address": config.CheckListen, "server.token_file": absolute, "server.tls_cert": absolute, "server.tls_key": absolute,
			"tools.enabled": tool,
		},
	}
}

func absolute(s string) error {
	if !filepath.IsAbs(s) {
		return fmt.Errorf("%q is not an absolute path", s)
	}
	return nil
}

// Validate checks what more than one key says.
func (c *Config) Validate() error {
	if (c.Server.TLSCert == "") != (c.Server.TLSKey == "") {
		return errs.New(errs.InvalidArgument, "server.tls_cert and server.tls_key are set together or not at all")
	}
	host, _, err := net.SplitHostPort(c.Server.Address)
	if err != nil {
		return errs.New(errs.InvalidArgument, "server.address: %w", err)
	}
	a, err := netip.ParseAddr(host)
	if c.Server.Protocol == "http" && c.Server.TLSCert == "" && host != "localhost" && (err != nil || !a.IsLoopback()) {
		return errs.New(errs.InvalidArgument, "server.address: %s is reached from outside, and tokens could be read on the way", c.Server.Address).
			WithHint("set server.tls_cert and server.tls_key, or listen on 127.0.0.1 behind a proxy that has TLS")
	}
	return nil
}
