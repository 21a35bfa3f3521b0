package e2e

import (
	"os/exec"
	"path/filepath"
	"testing"
)

// TestPackageServesWhereItIsUnpacked unpacks the archive of make package and
// deploys an example with it.
func TestPackageServesWhereItIsUnpacked(t *testing.T) {
	pack := exec.Command("hack/package.sh")
	pack.Dir = ".."
	out, err := pack.CombinedOutput()
	if err != nil {
		t.Fatalf("hack/package.sh: %v\n%s", err, out)
	}
	archives, err := filepath.Glob(filepath.Join(bin, "package", "*.tar.gz"))
	if err != nil || len(archives) != 1 {
		t.Fatalf("archives %v, %v", archives, err)
	}
	sum := exec.Command("sha256sum", "--check", filepath.Base(archives[0])+".sha256")
	sum.Dir = filepath.Dir(archives[0])
	if out, err := sum.CombinedOutput(); err != nil {
		t.Errorf("checksum: %v\n%s", err, out)
	}
	dir := t.TempDir()
	if out, err := exec.Command("tar", "-xzf", archives[0], "-C", dir, "--strip-components=1").CombinedOutput(); err != nil {
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
}
