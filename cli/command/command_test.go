package command

import (
	"os"
	"path/filepath"
	"testing"
)

func TestAppName(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "My Shop_2")
	if err := os.MkdirAll(filepath.Join(dir, ".runtime"), 0o755); err != nil {
		t.Fatal(err)
	}
	if got, err := AppName("", dir); got != "my-shop-2" || err != nil {
		t.Errorf("of the folder: %q %v", got, err)
	}
	if err := os.WriteFile(filepath.Join(dir, ".runtime", "app.toml"), []byte("name = \"store\"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if got, err := AppName("", dir); got != "store" || err != nil {
		t.Errorf("of app.toml: %q %v", got, err)
	}
	if got, err := AppName("given", dir); got != "given" || err != nil {
		t.Errorf("given: %q %v", got, err)
	}
}

func TestQuantities(t *testing.T) {
	for in, want := range map[string]int64{"512MB": 512 << 20, "2GiB": 2 << 30, "1048576": 1 << 20, "": 0, "-1MB": 0, "much": 0} {
		var b Bytes
		if err := b.Set(in); int64(b) != want || (err == nil) != (want != 0) {
			t.Errorf("Bytes(%q) = %d, %v; want %d", in, b, err, want)
		}
	}
	for in, want := range map[string]int64{"0.5": 500, "2": 2000, "250m": 250, "0": 0, "-1": 0, "NaN": 0, "x": 0} {
		var c CPU
		if err := c.Set(in); int64(c) != want || (err == nil) != (want != 0) {
			t.Errorf("CPU(%q) = %d, %v; want %d", in, c, err, want)
		}
	}
}

// TestProjectOfTheCluster: it is that of the commands, also before they connect.
func TestProjectOfTheCluster(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", dir)
	for _, k := range []string{"RUNTIME_SERVER", "RUNTIME_CLUSTER", "RUNTIME_STATE_DIR", "RUNTIME_PROJECT"} {
		t.Setenv(k, "")
	}
	if err := os.Mkdir(filepath.Join(dir, "runtime"), 0o700); err != nil {
		t.Fatal(err)
	}
	text := "current_cluster: a\nclusters:\n  a: {server: 'unix:///run/a.sock', project: team}\n"
	if err := os.WriteFile(filepath.Join(dir, "runtime", "clientconfig.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if p := New(nil).Project(); p != "team" {
		t.Errorf("project %q", p)
	}
}
