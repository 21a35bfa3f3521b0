//go:build kubernetes

package e2e

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"miren.dev/runtime/testsupport/kubernetestest"
	"miren.dev/runtime/testsupport/wait"
)

// privateRegistry starts a registry that asks for a password, without TLS, and returns
// its host and a file of Docker's client with the password.
func privateRegistry(t *testing.T) (host, credentials string) {
	t.Helper()
	handler := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); user != "team" || password != "secret" {
			w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		handler.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	host = strings.TrimPrefix(s.URL, "http://")
	return host, fmt.Sprintf(`{"auths": {%q: {"username": "team", "password": "secret", "auth": "dGVhbTpzZWNyZXQ="}}}`, host)
}

// TestKubernetesDriver: a server runs its sandboxes as pods of a cluster, which pulls
// their images from a registry that the server pushed them to, over a crash of the
// server; it says what a cluster cannot do, and leaves nothing in it.
func TestKubernetesDriver(t *testing.T) {
	cluster := kubernetestest.Start(t, bin)
	host, credentials := privateRegistry(t)
	secret := &v1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "registry"}, Type: v1.SecretTypeDockerConfigJson,
		Data: map[string][]byte{v1.DockerConfigJsonKey: []byte(credentials)},
	}
	if _, err := cluster.Core.Secrets(kubernetestest.Namespace).Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	credentialsFile := filepath.Join(t.TempDir(), "config.json")
	if err := os.WriteFile(credentialsFile, []byte(credentials), 0o600); err != nil {
		t.Fatal(err)
	}
	pods := func() []string {
		t.Helper()
		list, err := cluster.Core.Pods(kubernetestest.Namespace).List(context.Background(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, p := range list.Items {
			names = append(names, p.Name)
		}
		return names
	}
	t.Cleanup(func() { // after the server was stopped
		if left := pods(); len(left) > 0 {
			t.Errorf("the cluster has %v after the server was stopped", left)
		}
	})
	s, err := newServer("k8s")
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig := cluster.Kubeconfig()
	s.env = []string{
		"RUNTIME_NODE_DRIVER=kubernetes", "RUNTIME_KUBERNETES_KUBECONFIG=" + kubeconfig, "RUNTIME_KUBERNETES_NAMESPACE=" + kubernetestest.Namespace,
		"RUNTIME_KUBERNETES_REGISTRY=" + host + "/team/runtime", "RUNTIME_KUBERNETES_REGISTRY_PLAIN_HTTP=true",
		"RUNTIME_KUBERNETES_REGISTRY_CREDENTIALS=" + credentialsFile, "RUNTIME_KUBERNETES_PULL_SECRET=" + secret.Name,
	}
	for setting, words := range map[string]string{
		"RUNTIME_KUBERNETES_NAMESPACE=other":         "in namespace other, to get pods, list pods",
		"RUNTIME_KUBERNETES_RUNTIME_CLASS=other":     `runtime class "other"`,
		"RUNTIME_KUBERNETES_REGISTRY=127.0.0.1:1/x":  "push image 127.0.0.1:1/x@sha256:",
		"RUNTIME_KUBERNETES_REGISTRY_CREDENTIALS=":   "401 Unauthorized",
		"RUNTIME_KUBERNETES_REGISTRY=":               "kubernetes.registry: no registry is configured",
		"RUNTIME_KUBERNETES_KUBECONFIG=/nonexistent": "access to Kubernetes by /nonexistent",
		"RUNTIME_KUBERNETES_KUBECONFIG=":             "the server does not run in a pod",
	} {
		good := s.env
		s.env = append(append([]string{}, good...), setting)
		if err := s.start(); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("start with %s: %v, want %q", setting, err, words)
		}
		s.env = good
	}
	s.begin(t)

	out := s.r(t, "", "sandbox", "run", "--image", "debian", "--", "sh", "-c", "dmesg | head -n 1; echo $((6*7))")
	contains(t, "a command in gVisor", out, "gVisor", "42")
	sid := s.run(t, "--", "sleep", "600")
	s.r(t, "", "sandbox", "exec", sid, "--", "sh", "-c", "echo kept >/tmp/file")
	if names := fmt.Sprint(pods()); !strings.Contains(names, sid) {
		t.Errorf("the sandbox is none of the pods %s", names)
	}

	dir := copyExample(t, "static-site")
	s.r(t, dir, "app", "deploy", "--app", "site")
	s.answers(t, "site", "/", "v1")

	kill(t, s.pid(t, "server"))
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
	s.healthy(t)
	if out := s.r(t, "", "sandbox", "exec", sid, "--", "cat", "/tmp/file"); out != "kept\n" {
		t.Errorf("after a crash of the server: %q", out)
	}
	s.answers(t, "site", "/", "v1")
	for what, args := range map[string][]string{
		"egress rules": {"sandbox", "run", "--image", "debian", "--egress", "none", "--", "true"},
		"snapshots":    {"sandbox", "snapshot", sid},
	} {
		if res := s.try(t, "", args...); res.Code == 0 || !strings.Contains(res.Stderr, "the Kubernetes driver has no "+what) {
			t.Errorf("%s: %s", what, res)
		}
	}
	if out := s.r(t, "", "sandbox", "exec", sid, "--", "echo", "on"); out != "on\n" {
		t.Errorf("after what was refused: %q", out)
	}

	kill(t, s.pid(t, "server"))
	s.env[0] = "RUNTIME_NODE_DRIVER=runsc"
	if err := s.start(); err == nil || !strings.Contains(err.Error(), "sandboxes of the driver kubernetes") {
		t.Errorf("another driver while sandboxes exist: %v", err)
	}
	s.env[0] = "RUNTIME_NODE_DRIVER=kubernetes"
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
	s.healthy(t)
	s.r(t, "", "sandbox", "delete", sid)
	wait.NoError(t, "the sandbox's pod is gone", func() error {
		if names := fmt.Sprint(pods()); strings.Contains(names, sid) {
			return fmt.Errorf("pods: %s", names)
		}
		return nil
	}, wait.Within(converge))
}
