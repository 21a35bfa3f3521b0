package baseimage

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"miren.dev/runtime/testsupport/need"
)

// A release that has no packages of a server is not offered for it, not even to a machine that runs it.
func TestServersAreOfferedWhereTheyHavePackages(t *testing.T) {
	h := &host{id: "debian", codename: "bookworm"}
	if got := offers(valkeyServer, h, ""); !slices.Equal(got, []offer{{"8.1", "trixie"}}) {
		t.Errorf("Valkey: %v", got)
	}
	if got := offers(postgresServer, h, ""); !slices.Equal(got, []offer{{"15", "bookworm"}, {"17", "trixie"}}) {
		t.Errorf("PostgreSQL: %v", got)
	}
	if found, err := choose(postgresServer, offers(postgresServer, h, ""), "17", ""); err != nil || found.codename != "trixie" {
		t.Errorf("PostgreSQL 17: %v %v", found, err)
	}
}

// Each server's image has the programs that addons call, in a form that its shell reads.
func TestServersHaveTheProgramsOfAddons(t *testing.T) {
	need.Tools(t, "sh")
	for _, name := range []string{"postgres", "valkey", "mysql", "s3"} {
		for _, program := range []string{"addon-start", "addon-users", "addon-console"} {
			file := filepath.Join("apps", name, "usr/local/bin", program)
			if out, err := exec.Command("sh", "-n", file).CombinedOutput(); err != nil {
				t.Errorf("%s: %v %s", file, err, out)
			}
			if _, err := os.Stat(file); err != nil {
				t.Error(err)
			}
		}
	}
}
