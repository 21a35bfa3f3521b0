package deployment_test

import (
	"testing"
	"time"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/core"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/schema"
)

// The host of a name is that of the oldest app, so a younger one of another project has no URL.
func TestNameOfAnotherProject(t *testing.T) {
	e := newEnv(t)
	project := &core.Project{Meta: schema.Meta{Name: "other"}}
	if err := entity.Create(t.Context(), e.store, project); err != nil {
		t.Fatal(err)
	}
	other := &app.App{Meta: schema.Meta{Name: "shop", Project: project.ID}}
	if err := entity.Create(t.Context(), e.store, other); err != nil {
		t.Fatal(err)
	}
	e.control(e.store)
	if d := e.succeed(e.deploy("shop", e.source("ok", "web=ok"))); d.Status.URL != "" {
		t.Errorf("the app of another project answers at %s", d.Status.URL)
	}
	if err := entity.Delete(t.Context(), e.store, other); err != nil {
		t.Fatal(err)
	}
	if d := e.succeed(e.deploy("shop", e.source("ok", "web=ok"))); d.Status.URL != "http://shop.localhost/" {
		t.Errorf("URL %q", d.Status.URL)
	}
}

// A server whose ingress has moved corrects the URL.
func TestIngressMoves(t *testing.T) {
	e := newEnv(t)
	stop := e.control(e.store)
	d := e.succeed(e.deploy("shop", e.source("ok", "web=ok")))
	stop()
	port := ":8080"
	e.port.Store(&port)
	e.control(e.store)
	e.eventually("the URL is corrected", func() bool { return e.get(d).Status.URL == "http://shop.localhost:8080/" })
}

// The URL of an app is that of what serves, also after a deployment that failed, and of an app without a port there is
// none.
func TestURLOfWhatServes(t *testing.T) {
	e := newEnv(t)
	stop := e.control(e.store)
	fails := func(name, services, want string) {
		t.Helper()
		if d := e.phase(e.deploy(name, e.source("ok", services)), app.DeploymentPhaseFailed); d.Status.URL != want {
			t.Errorf("%s with %s: URL %q, want %q", name, services, d.Status.URL, want)
		}
	}
	fails("shop", "web=crash", "")
	e.succeed(e.deploy("shop", e.source("ok", "web=ok")))
	fails("shop", "web=crash", "http://shop.localhost/")
	e.sources.put("src-mail", map[string]string{"Dockerfile": "FROM scratch\nCMD [\"/x\"]\n", "BUILD": "ok",
		"app.toml": "[services.web]\ncommand = \"run\"\nport = 0\nenv = { SIM = \"ok\" }\n"})
	if d := e.succeed(e.deploy("mail", "src-mail")); d.Status.URL != "" {
		t.Errorf("an app that has no port has the URL %s", d.Status.URL)
	}
	stop()
	e.bake = time.Hour
	e.control(e.store)
	fails("shop", "web=late", "http://shop.localhost/")
	fails("blog", "web=late", "")
}
