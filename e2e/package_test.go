package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"miren.dev/runtime/pkg/config"
	"miren.dev/runtime/pkg/instance"
	"miren.dev/runtime/testsupport/leakcheck"
)

// pack makes a package of the programs of bin/ with hack/package.sh, checks its sum
// and returns its path.
func pack(t *testing.T, args ...string) string {
	t.Helper()
	dir := t.TempDir()
	cmd := exec.Command("hack/package.sh", args...)
	cmd.Dir, cmd.Env = "..", append(os.Environ(), "RUNTIME_PACKAGES="+dir)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("hack/package.sh: %v\n%s", err, out)
	}
	sums, err := filepath.Glob(filepath.Join(dir, "*.sha256"))
	if err != nil || len(sums) != 1 {
		t.Fatalf("sums %v, %v", sums, err)
	}
	sum := exec.Command("sha256sum", "--check", sums[0])
	sum.Dir = dir
	if out, err := sum.CombinedOutput(); err != nil {
		t.Errorf("checksum: %v\n%s", err, out)
	}
	return strings.TrimSuffix(sums[0], ".sha256")
}

// TestPackageServesWhereItIsUnpacked unpacks the archive of make package and
// deploys an example with it. Then the programs of the Debian package take over, and
// no request fails. Then the test kills all processes, and r doctor --fix removes
// the mounts, interfaces and control groups of the installation.
func TestPackageServesWhereItIsUnpacked(t *testing.T) {
	dir, installed := t.TempDir(), t.TempDir()
	if out, err := exec.Command("tar", "-xzf", pack(t), "-C", dir, "--strip-components=1").CombinedOutput(); err != nil {
		t.Fatalf("unpack: %v\n%s", err, out)
	}
	if out, err := exec.Command("dpkg-deb", "--extract", pack(t, "deb"), installed).CombinedOutput(); err != nil {
		t.Fatalf("unpack: %v\n%s", err, out)
	}

	s, err := newServer("package")
	if err != nil {
		t.Fatal(err)
	}
	if s.exe, err = filepath.Rel(bin, filepath.Join(dir, "r")); err != nil {
		t.Fatal(err)
	}
	s.begin(t)
	s.r(t, copyExample(t, "go-http"), "app", "deploy", "--app", "packed")
	s.answers(t, "packed", "/", "v1")

	before, ingress := s.pid(t, "server"), s.pid(t, "ingress")
	if s.exe, err = filepath.Rel(bin, filepath.Join(installed, "usr/bin/r")); err != nil {
		t.Fatal(err)
	}
	stop := s.watchApp("packed")
	s.r(t, "", "server", "upgrade")
	s.healthy(t)
	if failed, all := stop(); failed > 0 || all == 0 {
		t.Errorf("%d of %d requests failed during the upgrade", failed, all)
	}
	after := s.pid(t, "server")
	exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", after))
	if err != nil || after == before || exe != filepath.Join(installed, "usr/lib/runtime/runtime") {
		t.Errorf("the server is process %d (before %d) of %s, %v", after, before, exe, err)
	}
	if now := s.pid(t, "ingress"); now != ingress {
		t.Errorf("the ingress is process %d, before %d", now, ingress)
	}

	kill(t, s.pid(t, "server")) // first: it starts the others again
	s.killAll(t)
	if res := s.try(t, "", "doctor"); res.Code == 0 || !strings.Contains(res.Stdout, "nothing of rt-") || !strings.Contains(res.Stdout, "--fix") {
		t.Errorf("r doctor after everything was killed: %s", res)
	}
	res := s.try(t, "", "doctor", "--fix")
	contains(t, "r doctor --fix", res.Stdout, "mended: nothing of rt-", "the control group")
	if res = s.try(t, "", "doctor"); strings.Contains(res.Stdout, "FAIL  leftovers") {
		t.Errorf("r doctor after --fix: %s", res)
	}
	in, err := instance.Find(s.state, config.DefaultRunDir())
	if err != nil {
		t.Fatal(err)
	}
	if left, err := leakcheck.List(in); err != nil || len(left) > 0 {
		t.Errorf("after --fix there is %v, %v", left, err)
	}
}

// TestInstallGuide verifies a signature of hack/sign.sh as docs/install.md says, and takes base images from a file.
func TestInstallGuide(t *testing.T) {
	g := newGuide(t, shared, "install")
	for _, begin := range []string{"docker load", "docker run", "docker exec"} {
		g.elsewhere(begin, "TestImage")
	}
	g.elsewhere("helm install", "TestChart")
	g.file("archive.tar.gz", "content")
	key := filepath.Join(t.TempDir(), "key")
	sh := func(dir, command string) string {
		t.Helper()
		cmd := exec.Command("bash", "-c", command)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "RELEASE_KEY="+key)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", command, err, out)
		}
		return string(out)
	}
	sh(g.dir, "sha256sum * > SHA256SUMS && ssh-keygen -q -t ed25519 -N '' -f "+key)
	sh("..", "hack/sign.sh "+filepath.Join(g.dir, "SHA256SUMS"))
	public, err := os.ReadFile(key + ".pub")
	if err != nil {
		t.Fatal(err)
	}
	g.file("signers", "release "+string(public))
	g.run("ssh-keygen -Y verify", "Good")
	g.run("sha256sum", "archive.tar.gz: OK")
	g.run("r server export-images", "sandbox base")
	g.run("r server import-images", "was here") // it is the same machine
}
