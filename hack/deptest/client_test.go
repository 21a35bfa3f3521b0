package deptest

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// clientPlatforms are the platforms of cmd/r; hack/lint.sh builds it for each.
var clientPlatforms = []string{"linux/amd64", "linux/arm64", "darwin/amd64", "darwin/arm64", "windows/amd64", "windows/arm64"}

// clientForbids are the packages, and those below them, that cmd/r must not
// link: the server and the components of its machine.
var clientForbids = []string{
	module + "components", module + "domain", module + "controllers", module + "servers", module + "lsvd",
	module + "entity/pgstore", module + "entity/sqlitestore", module + "entity/etcdstore", module + "cli/machine",
	"github.com/jackc/pgx", "modernc.org/sqlite", "go.etcd.io/etcd", "github.com/containerd/containerd", "github.com/google/nftables", "github.com/vishvananda", "github.com/moby/buildkit/client",
}

// clientPermits are the packages below clientForbids that cmd/r links: `r mcp`
// serves MCP on any machine, as a client of the server, and the table of
// languages says what it offers.
var clientPermits = []string{module + "servers/mcp", module + "domain/languages"}

// linkedByClient returns the packages of deps that cmd/r must not link.
func linkedByClient(deps []pkg) []string {
	return slices.DeleteFunc(linked(deps, clientForbids), func(p string) bool { return slices.Contains(clientPermits, p) })
}

// deps returns every package that a program links on a platform.
func deps(t *testing.T, platform, program string) []pkg {
	t.Helper()
	goos, goarch, _ := strings.Cut(platform, "/")
	cmd := exec.Command("go", "list", "-deps", program)
	cmd.Dir = root(t)
	cmd.Env = append(os.Environ(), "GOOS="+goos, "GOARCH="+goarch, "CGO_ENABLED=0")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list -deps %s for %s: %v", program, platform, err)
	}
	var pkgs []pkg
	for _, p := range strings.Fields(string(out)) {
		pkgs = append(pkgs, pkg{ImportPath: p})
	}
	return pkgs
}

func TestClientLinksNothingOfTheServer(t *testing.T) {
	for _, platform := range clientPlatforms {
		if found := linkedByClient(deps(t, platform, "./cmd/r")); len(found) > 0 {
			t.Errorf("cmd/r links %v on %s: move what needs them to a package that cli/machine registers", found, platform)
		}
	}
}

func TestPlantedDependenciesOfTheClientAreFound(t *testing.T) {
	planted := append(deps(t, "linux/amd64", "./cmd/r"), pkg{ImportPath: module + "servers/rpc"}, pkg{ImportPath: "github.com/jackc/pgx/v5/pgconn"})
	if found := linkedByClient(planted); !slices.Equal(found, []string{module + "servers/rpc", "github.com/jackc/pgx/v5/pgconn"}) {
		t.Errorf("found %q, want what was planted", found)
	}
	all := deps(t, "linux/amd64", "./cmd/runtime")
	for _, f := range clientForbids {
		if len(linked(all, []string{f})) == 0 {
			t.Errorf("cmd/runtime does not link %s: the list is out of date", f)
		}
	}
}
