package e2e

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"miren.dev/runtime/api/ingress"
	"miren.dev/runtime/pkg/config"
	"miren.dev/runtime/pkg/instance"
	"miren.dev/runtime/testsupport/wait"
)

// TestIngressTakeover changes the configuration of the ingress while an app is under
// load: a new process takes over from the old one, and no request fails. One that is
// killed before it serves changes nothing. A connection to the replaced process goes on
// when the server, too, is replaced.
func TestIngressTakeover(t *testing.T) {
	port, err := freePort()
	if err != nil {
		t.Fatal(err)
	}
	address := fmt.Sprintf("127.0.0.1:%d", port)
	s := own(t, "takeover", "--ingress-https-address", address)
	name, dir := "app", copyExample(t, "go-http")
	edit(t, filepath.Join(dir, "main.go"), "	r.Get(\"/healthz\"", scaledApp)
	s.r(t, dir, "app", "deploy", "--app", name)
	in, err := instance.Find(s.state, config.DefaultRunDir())
	if err != nil {
		t.Fatal(err)
	}
	var stops []func() (int64, int64)
	for range 3 {
		stops = append(stops, s.watchApp(name))
	}
	stops = append(stops, s.watchHTTP3(t, name, address))
	first := s.pid(t, "ingress")

	// A successor that is killed while it stands by.
	files, err := filepath.Glob(in.Socket("ingress-*.yaml"))
	if err != nil || len(files) != 1 {
		t.Fatalf("%q %v", files, err)
	}
	other := in.Socket("other.sock")
	standby := exec.Command(filepath.Join(bin, "runtime"), "ingress", "run", "--config", files[0], "--socket", other, "--take-over", in.Socket("ingress.sock"))
	var log strings.Builder
	standby.Stdout, standby.Stderr = &log, &log
	if err := standby.Start(); err != nil {
		t.Fatal(err)
	}
	wait.For(t, "the successor stands by", func() bool {
		st, err := ingress.Client{Socket: other}.Status(t.Context())
		return err == nil && st.Standby && st.Synced
	}, wait.Within(converge))
	if err := standby.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = standby.Wait() // it was killed
	s.answers(t, name, "/", "v1")

	pid := first
	echo := s.openEcho(t, name)
	for i, hold := range []string{"31s", "32s", "33s"} {
		kill(t, s.pid(t, "server"))
		extra := s.extra
		s.extra = append(extra[:len(extra):len(extra)], "--ingress-hold-timeout", hold)
		if err := s.start(); err != nil {
			t.Fatal(err)
		}
		s.extra = extra
		s.healthy(t)
		wait.For(t, "another process serves", func() bool { return s.pid(t, "ingress") != pid }, wait.Within(converge))
		pid = s.pid(t, "ingress")
		s.ingressIsConfined(t)
		s.answers(t, name, "/", "v1")
		if i < 2 { // the second server asks the first process again to end
			echo(t)
		}
	}
	echo(nil)
	wait.For(t, "the first process ends", func() bool { return ended(first) }, wait.Within(converge))
	edit(t, filepath.Join(dir, "main.go"), `"v1"`, `"v2"`)
	s.r(t, dir, "app", "deploy", "--app", name) // which asks the ingress for both processes
	s.answers(t, name, "/", "v2")
	var failed, all int64
	for _, stop := range stops {
		f, n := stop()
		failed, all = failed+f, all+n
	}
	if failed > 0 || all < 100 {
		t.Errorf("%d of %d requests failed", failed, all)
	}
	t.Logf("%d requests", all)
	wait.For(t, "only the files of the process that serves are there", func() bool {
		files, err := filepath.Glob(in.Socket("ingress-*.yaml"))
		return err == nil && len(files) == 1
	}, wait.Within(converge))
	st, err := ingress.Client{Socket: in.Socket("ingress.sock")}.Status(context.WithoutCancel(t.Context()))
	if err != nil || st.PID != pid || st.Standby || st.Draining {
		t.Errorf("%+v %v", st, err)
	}
}
