package serverctl

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/pkg/config"
	"miren.dev/runtime/pkg/errs"
)

// TestInstall installs below a directory, again, and uninstalls.
func TestInstall(t *testing.T) {
	t.Setenv("RUNTIME_CONFIG", "")
	root := t.TempDir()
	call := func(make func(*command.Env) *cobra.Command, args ...string) error {
		var out bytes.Buffer
		cmd := make(command.New(&console.Console{Out: &out, Err: &out}))
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		cmd.SetArgs(append(args, "--root", root))
		return cmd.ExecuteContext(t.Context())
	}
	conf, file := filepath.Join(root, unitConf), filepath.Join(root, unitFile)
	if err := call(NewUninstall); !errs.Is(err, errs.NotFound) {
		t.Errorf("nothing is installed: %v", err)
	}
	if err := call(NewInstall, "--ingress-http-address", "127.0.0.1:8080"); err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Load(conf, nil, nil)
	if err != nil || cfg.Ingress.HTTPAddress != "127.0.0.1:8080" {
		t.Errorf("%+v, %v", cfg, err)
	}
	if st, err := os.Stat(conf); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("the configuration may have secrets, and others may read it: %v, %v", st.Mode(), err)
	}
	if err := call(NewInstall, "--ingress-http-address", "127.0.0.1:9090"); err != nil {
		t.Fatal(err)
	}
	if cfg, err := config.Load(conf, nil, nil); err != nil || cfg.Ingress.HTTPAddress != "127.0.0.1:8080" {
		t.Errorf("the second install changed the configuration: %+v, %v", cfg, err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	exe, err := program()
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"ExecStart=" + exe + " server run --config " + unitConf, "KillMode=process", "Delegate=yes", "Restart=always", "WantedBy=multi-user.target"} {
		if !strings.Contains(string(text), "\n"+line+"\n") {
			t.Errorf("the unit lacks %s:\n%s", line, text)
		}
	}
	// Where systemd's tool is installed it judges the unit too.
	if tool, err := exec.LookPath("systemd-analyze"); err == nil {
		if out, err := exec.Command(tool, "verify", "--man=no", file).CombinedOutput(); err != nil || bytes.Contains(out, []byte(unitName)) {
			t.Errorf("systemd-analyze verify: %v\n%s", err, out)
		}
	}
	if err := call(NewUninstall); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(file); !os.IsNotExist(err) {
		t.Errorf("the unit is there: %v", err)
	}
	if _, err := os.Stat(conf); err != nil {
		t.Errorf("the configuration is gone: %v", err)
	}
}
