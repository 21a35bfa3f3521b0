package gitpush

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/source"
)

// TestPushOptions: options make a push a canary or a preview by the rules of `r deploy`, and a wrong one is refused before
// anything is made.
func TestPushOptions(t *testing.T) {
	e := newEnv(t)
	for options, want := range map[string]string{
		"canray=10":               `there is no push option "canray"`,
		"ci.skip":                 "push options are canary, preview, ttl, host, folder",
		"canary":                  "the push option canary has no value",
		"canary=100":              "must be a percentage from 1 to 99",
		"canary=ten":              "must be a percentage from 1 to 99",
		"canary=1 canary=2":       "the push option canary is given twice",
		"ttl=24h":                 "the push option ttl is for a preview",
		"host=a.example":          "the push option host is for a preview",
		"preview=pr-12 ttl=soon":  "which is no duration",
		"preview=pr-12 ttl=1s":    "ttl",
		"preview=PR_12":           "name",
		"preview=pr-12 canary=10": "the preview pr-12 gets no requests to the app's hosts",
		"folder=../x":             "must be a path inside the repository",
		"folder=/etc":             "must be a path inside the repository",
		"folder=apps/none":        "the commit has no folder apps/none",
		"folder=index.html":       "the commit has no folder index.html",
	} {
		var args []string
		for o := range strings.FieldsSeq(options) {
			args = append(args, "-o", o)
		}
		e.push(true, want, "shop", append(args, "main")...)
	}
	if _, err := e.Find(t.Context(), "", "shop"); !errs.Is(err, errs.NotFound) {
		t.Errorf("a refused push created the app: %v", err)
	}

	e.push(false, "shop serves", "shop", "main")
	if e.last.Spec.Canary != 0 {
		t.Errorf("a push without options is a canary of %d", e.last.Spec.Canary)
	}
	e.Commit("index.html", "two\n")
	e.push(false, "shop serves", "shop", "-o", "canary=10", "main")
	if e.last.Spec.Canary != 10 || e.last.Spec.Preview != nil {
		t.Errorf("the canary is %+v", e.last.Spec)
	}
	// Any branch can be a preview, also one whose pushes are not deployed.
	e.push(false, "shop serves", "shop", "-o", "preview=pr-12", "-o", "ttl=24h", "-o", "host=pr-12.example", "main:topic")
	if p := e.last.Spec.Preview; p == nil || *p != (app.PreviewRequest{Name: "pr-12", Host: "pr-12.example", TTL: 24 * time.Hour}) {
		t.Errorf("the preview is %+v", p)
	}
	e.Commit("app.toml", "[git]\npreviews = true\n")
	e.push(false, "shop serves", "shop", "-o", "ttl=1h", "main:topic")
	if p := e.last.Spec.Preview; p == nil || p.Name != "topic" || p.TTL != time.Hour {
		t.Errorf("the preview of a branch is %+v", p)
	}
	e.push(true, "the preview topic gets no requests", "shop", "-o", "canary=10", "main:topic")
}

// TestPushedFolder: of a monorepo the folder of the app is deployed, by an option or by app.toml.
func TestPushedFolder(t *testing.T) {
	e := newEnv(t)
	deployed := func() (folder string, files []string) {
		t.Helper()
		b, err := entity.Get[app.Build](t.Context(), e.Store, e.last.Spec.Build)
		if err != nil {
			t.Fatal(err)
		}
		m, err := e.Sources.Manifest(source.Digest(b.Spec.Source))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range m.Files {
			files = append(files, f.Path)
		}
		return b.Spec.Folder, files
	}
	want := func(folder, files string) {
		t.Helper()
		if gotFolder, got := deployed(); gotFolder != folder || strings.Join(got, " ") != files {
			t.Errorf("deployed is %q of %v, want %q of %s", gotFolder, got, folder, files)
		}
	}
	e.Commit("apps/shop/index.html", "shop\n")
	e.Commit("apps/blog/index.html", "blog\n")
	e.push(false, "shop serves", "shop", "-o", "folder=./apps/shop/", "main")
	want("", "index.html")

	// Each push takes the folder of app.toml; the option comes before it.
	e.Commit("app.toml", "[git]\nfolders = { shop = \"apps/shop\", blog = \"apps/blog\", lost = \"apps/lost\" }\n")
	e.Commit("apps/blog/app.toml", "[git]\nbranch = \"live\"\n")
	e.push(false, "shop serves", "shop", "main")
	want("", "index.html")
	e.push(true, "git.folders.lost in app.toml: the commit has no folder apps/lost", "lost", "main")
	e.push(false, "other serves", "other", "main")
	want("", "app.toml apps/blog/app.toml apps/blog/index.html apps/shop/index.html index.html")
	e.push(false, "lost serves", "lost", "-o", "folder=.", "main")
	// [git] of the folder says which branch deploys.
	e.push(true, "pushes of the branch main are not deployed", "blog", "main")
	e.push(false, "blog serves", "blog", "main:live")
	want("", "app.toml index.html")

	// A workspace is uploaded with the folder that has its lock file.
	e.Commit("package.json", `{"workspaces": ["apps/*"]}`)
	e.Commit("package-lock.json", "{}")
	e.Commit("apps/shop/package.json", `{"name": "shop"}`)
	e.push(false, "remote: uploads the whole commit, which has the lock file of the workspace apps/shop", "shop", "main")
	if folder, files := deployed(); folder != "apps/shop" || len(files) != 8 {
		t.Errorf("deployed is %q of %v", folder, files)
	}

	// A link does not lead out of the commit.
	for name, to := range map[string]string{"etc": "/etc", "up": "..", "inside": "apps"} {
		if err := os.Symlink(to, filepath.Join(e.Dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	e.Git("add", ".")
	e.Git("commit", "--quiet", "--message", "links")
	for _, folder := range []string{"etc", "etc/ssh", "up", "inside/shop"} {
		e.push(true, "the commit has no folder "+folder, "shop", "-o", "folder="+folder, "main")
	}
}
