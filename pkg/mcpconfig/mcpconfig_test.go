package mcpconfig

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"miren.dev/runtime/pkg/errs"
)

var schema = Schema(func(name string) error {
	if name != "run_code" {
		return errors.New("no tool " + name)
	}
	return nil
})

func TestGenerateRoundTrips(t *testing.T) {
	var b strings.Builder
	if err := schema.Generate(&b, schema.Default()); err != nil {
		t.Fatal(err)
	}
	c, err := schema.Parse("generated", []byte(b.String()))
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(schema.Default(), c); d != "" {
		t.Error(d)
	}
	if err := c.Validate(); err != nil {
		t.Error(err)
	}
}

func TestEnvironmentOverridesTheFile(t *testing.T) {
	c, err := schema.Load("", []string{"MCP_SANDBOXD_SANDBOX_MEMORY_BYTES=7", "MCP_SANDBOXD_TOOLS_ENABLED=run_code", "RUNTIME_LOG_LEVEL=x"}, nil)
	if err != nil || c.Sandbox.MemoryBytes != 7 || len(c.Tools.Enabled) != 1 {
		t.Errorf("%+v, %v", c, err)
	}
	_, err = schema.Load("", []string{"MCP_SANDBOXD_SANDBOX_MEMRY_BYTES=7"}, nil)
	if err == nil || !strings.Contains(err.Error(), "did you mean MCP_SANDBOXD_SANDBOX_MEMORY_BYTES?") {
		t.Errorf("%v", err)
	}
}

func TestMistakesAreExplained(t *testing.T) {
	for _, c := range []struct{ yml, want string }{
		{"server:\n  protocol: tcp", `c:2: server.protocol: "tcp" is none of stdio, http`},
		{"server:\n  address: 7071", "c:2: server.address"},
		{"server:\n  token_file: token", "not an absolute path"},
		{"sandbox:\n  network: host", `c:2: sandbox.network: "host" is none of none, bridge`},
		{"sandbox:\n  database_path: store.db", "does not match"},
		{"sandbox:\n  idle: 0s", "below the minimum"},
		{"tools:\n  enabled: [run_cod]", "c:2: tools.enabled: no tool run_cod"},
		{"log:\n  fil: /x", "did you mean log.file?"},
	} {
		_, err := schema.Parse("c", []byte(c.yml))
		if !errs.Is(err, errs.InvalidArgument) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v; want %q", c.yml, err, c.want)
		}
	}
}

func TestTokensAreNotSentInTheClear(t *testing.T) {
	for address, valid := range map[string]bool{"127.0.0.1:1": true, "localhost:1": true, "[::1]:1": true, ":1": false, "0.0.0.0:1": false, "example.com:1": false} {
		c := schema.Default()
		c.Server.Protocol, c.Server.Address = "http", address
		if err := c.Validate(); (err == nil) != valid {
			t.Errorf("%s: %v", address, err)
		}
		if c.Server.TLSCert = "/cert"; c.Validate() == nil {
			t.Error("a certificate without a key is valid")
		}
		if c.Server.TLSKey = "/key"; c.Validate() != nil {
			t.Errorf("%s with TLS: %v", address, c.Validate())
		}
	}
}
