package e2e

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/testsupport/wait"
)

// TestTemplateBuild builds templates of a Dockerfile, of steps and of an image,
// runs sandboxes of them, and claims a warm one whose start command serves
// HTTP.
func TestTemplateBuild(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "Dockerfile"), `FROM runtime/sandbox:base
WORKDIR /home/user/shop
RUN mkdir made && date +%s%N > made/stamp
COPY index.html .
RUN cat index.html > copied
`)
	write(t, filepath.Join(dir, "index.html"), "first\n")
	build := func(args ...string) string {
		t.Helper()
		return shared.r(t, dir, append([]string{"template", "build", "shop"}, args...)...)
	}
	out := build("--start", "exec python3 -m http.server 8000", "--ready-port", "8000", "--ready-path", "/index.html", "--memory", "256MiB", "--title", "A shop")
	contains(t, "build", out, "uploaded 2 files", "shop:1 is ready", "tags: latest")
	in := func(name string, command ...string) string {
		t.Helper()
		return shared.r(t, "", append([]string{"sandbox", "run", "--template", name, "--"}, command...)...)
	}
	// The start command serves before the first command runs, in a sandbox that is made for it.
	if out := in("shop", "curl", "-s", "http://localhost:8000/index.html"); out != "first\n" {
		t.Errorf("the start command served %q", out)
	}
	stamp := in("shop:1", "cat", "made/stamp")

	// A build that fails leaves the previous version selected.
	write(t, filepath.Join(dir, "Dockerfile.bad"), "FROM runtime/sandbox:base\nRUN echo it broke; exit 9\n")
	failed := shared.try(t, dir, "template", "build", "shop", "--file", "Dockerfile.bad")
	if failed.Code != exit.BuildFailed || !strings.Contains(failed.String(), "it broke") {
		t.Errorf("a build that fails: %s", failed)
	}
	contains(t, "log of the failed build", shared.r(t, "", "template", "logs", "shop:2"), "it broke")
	unknown := shared.try(t, dir, "template", "build", "shop", "--image", "runtime/sandbox:pyhton")
	if unknown.Code != exit.BuildFailed {
		t.Errorf("an unknown image: %s", unknown)
	}
	contains(t, "show", shared.r(t, "", "template", "show", "shop"), "python3 -m http.server", "answers GET /index.html", "256")
	if out := in("shop", "cat", "copied"); out != "first\n" {
		t.Errorf("after a failed build: %q", out)
	}

	// One changed file is uploaded, and only the steps after it run again.
	write(t, filepath.Join(dir, "index.html"), "second\n")
	out = build("--tag", "beta")
	contains(t, "second build", out, "uploaded 1 file of", "cached", "shop:4 is ready", "tags: beta")
	if got := in("shop:beta", "sh", "-c", "cat copied made/stamp"); got != "second\n"+stamp {
		t.Errorf("the second version has %q, want second and the stamp of the first, %q", got, stamp)
	}
	if out := in("shop", "cat", "copied"); out != "first\n" {
		t.Errorf("shop selects a version with another tag: %q", out)
	}

	// A warm sandbox can be claimed when its start command is ready.
	contains(t, "pool set", shared.r(t, "", "pool", "set", "shop", "--min", "1", "--max", "1"), "1 to 1")
	var sb struct {
		ID   string `json:"id"`
		Spec struct {
			Origin string `json:"origin"`
		} `json:"spec"`
	}
	wait.NoError(t, "a warm sandbox is claimed", func() error {
		if err := json.Unmarshal([]byte(shared.r(t, "", "sandbox", "run", "--template", "shop", "--detach", "--json", "--ttl", "10m")), &sb); err != nil {
			return err
		}
		if out := shared.r(t, "", "sandbox", "exec", sb.ID, "--", "curl", "-s", "http://localhost:8000/index.html"); out != "first\n" {
			t.Fatalf("the start command served %q", out)
		}
		shared.r(t, "", "sandbox", "delete", sb.ID)
		if sb.Spec.Origin != "pool" {
			return fmt.Errorf("it was made by way of %s; %s", sb.Spec.Origin, shared.r(t, "", "pool", "list"))
		}
		return nil
	}, wait.Within(converge), wait.Every(time.Second))

	// The tag latest selects; the pool follows it.
	contains(t, "tag", shared.r(t, "", "template", "tag", "shop:beta", "latest"), "beta, latest")
	if out := in("shop", "cat", "copied"); out != "second\n" {
		t.Errorf("after the tag: %q", out)
	}
	contains(t, "rollback", shared.r(t, "", "template", "tag", "shop:1", "latest"), "latest")
	contains(t, "alias", shared.r(t, "", "template", "alias", "shop", "store"), "store")
	if out := in("store", "cat", "copied"); out != "first\n" {
		t.Errorf("after the rollback, by its alias: %q", out)
	}
	contains(t, "no tag", shared.r(t, "", "template", "tag", "--remove", "shop", "beta"), "latest")

	// Steps, from the template that was built.
	steps := filepath.Join(dir, "steps.yml")
	write(t, steps, `- from_template: shop
- copy: [index.html, /home/user/page, "user:user", "600"]
- env: {QUOTED: 'a "b" $c'}
- user: user
- run: ["id -un > /home/user/whoami", root]
- run: cat copied > of-template
- workdir: /home/user
`)
	contains(t, "build of steps", shared.r(t, dir, "template", "build", "stepped", "--steps", steps), "stepped:1 is ready")
	if got := in("stepped", "sh", "-c", `cat page whoami shop/of-template; echo "$QUOTED"; id -un; pwd`); got != "second\nroot\nfirst\na \"b\" $c\nuser\n/home/user\n" {
		t.Errorf("the template of steps has %q", got)
	}

	// An image as it is.
	contains(t, "build of an image", shared.r(t, "", "template", "build", "plain", "--image", "runtime/sandbox:base", "--env", "A=b"), "plain:1 is ready")
	if got := in("plain", "sh", "-c", "echo $A"); got != "b\n" {
		t.Errorf("the template of an image has %q", got)
	}

	reserved := shared.try(t, dir, "template", "build", "python")
	if reserved.Code == 0 || !strings.Contains(reserved.String(), "comes with the system") {
		t.Errorf("a reserved name: %s", reserved)
	}
	contains(t, "delete a version", shared.r(t, "", "template", "delete", "shop:2"), "deleted")
	for _, name := range []string{"shop", "stepped", "plain"} {
		contains(t, "delete", shared.r(t, "", "template", "delete", name, "--yes"), "deleted")
	}
	if left := shared.try(t, "", "template", "show", "shop"); left.Code == 0 {
		t.Errorf("after its deletion: %s", left)
	}
}
