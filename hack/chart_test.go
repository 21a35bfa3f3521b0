package hack

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/yaml"

	"miren.dev/runtime/pkg/config"
	"miren.dev/runtime/testsupport/need"
)

// helm runs helm on the chart that hack/chart.sh makes, with values.
func helm(t *testing.T, chart string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "helm", append(args, "--namespace", "runtime")...)
	if args[0] == "template" {
		cmd.Args = append(cmd.Args, "r", chart)
	} else {
		cmd.Args = append(cmd.Args, chart)
	}
	cmd.Env = append(os.Environ(), "HOME="+t.TempDir())
	var out, problems bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problems
	err := cmd.Run()
	if err != nil {
		err = errors.New(problems.String() + out.String())
	}
	return out.String(), err
}

// objects decodes what the chart renders, strictly: an unknown field is an error.
func objects(t *testing.T, text string) map[string]runtime.Object {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{v1.AddToScheme, appsv1.AddToScheme, rbacv1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	decoder := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
	found := map[string]runtime.Object{}
	documents := yaml.NewDocumentDecoder(io.NopCloser(strings.NewReader(text)))
	for {
		document := make([]byte, 1<<20)
		n, err := documents.Read(document)
		if err == io.EOF {
			return found
		}
		if err != nil {
			t.Fatal(err)
		}
		object, kind, err := decoder.Decode(document[:n], nil, nil)
		if err != nil {
			t.Fatalf("%v in\n%s", err, document[:n])
		}
		found[kind.Kind] = object
	}
}

func TestChart(t *testing.T) {
	need.Tools(t, "helm")
	dir := t.TempDir()
	if out, code := script(t, "chart.sh", dir); code != 0 {
		t.Fatal(out)
	}
	charts, err := filepath.Glob(filepath.Join(dir, "*.tgz"))
	if err != nil || len(charts) != 1 {
		t.Fatalf("charts %v, %v", charts, err)
	}
	chart := charts[0]
	must := []string{"--set", "image.repository=registry.example.com/runtime", "--set", "registry.repository=registry.example.com/apps"}
	if out, err := helm(t, chart, append([]string{"lint", "--strict"}, must...)...); err != nil {
		t.Errorf("helm lint: %v\n%s", err, out)
	}

	values := filepath.Join(dir, "values.yaml")
	text := `
registry: {repository: registry.example.com/apps, pushSecret: push, pullSecret: pull}
image: {repository: registry.example.com/runtime, pullSecrets: [pull]}
storeSecret: database
persistence: {storageClass: fast}
service: {type: LoadBalancer, annotations: {a: b}}
config:
  ingress: {http_address: "0.0.0.0:80", https_address: "0.0.0.0:443"}
  api: {address: "0.0.0.0:8443", tls: true}
  node: {driver: runsc}
nodeSelector: {disk: ssd}
tolerations: [{key: a, operator: Exists}]
`
	if err := os.WriteFile(values, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, args := range map[string][]string{"the least": must, "everything": {"--values", values}} {
		t.Run(name, func(t *testing.T) {
			out, err := helm(t, chart, append([]string{"template"}, args...)...)
			if err != nil {
				t.Fatal(err)
			}
			found := objects(t, out)
			for _, kind := range []string{"Namespace", "ServiceAccount", "Role", "RoleBinding", "ConfigMap", "StatefulSet", "Service"} {
				if found[kind] == nil {
					t.Errorf("no %s", kind)
				}
			}
			cfg, err := config.Parse("runtime.yaml", []byte(found["ConfigMap"].(*v1.ConfigMap).Data["runtime.yaml"]))
			if err != nil {
				t.Fatal(err)
			}
			if cfg.Node.Driver != "kubernetes" || cfg.Kubernetes.Registry != "registry.example.com/apps" || cfg.Kubernetes.Namespace != "sandboxes" {
				t.Errorf("configuration %+v, %+v", cfg.Node, cfg.Kubernetes)
			}
			set, service := found["StatefulSet"].(*appsv1.StatefulSet), found["Service"].(*v1.Service)
			if n := len(service.Spec.Ports); n == 0 || n != len(set.Spec.Template.Spec.Containers[0].Ports) {
				t.Errorf("ports %+v", service.Spec.Ports)
			}
			if name == "everything" && (len(service.Spec.Ports) != 3 || cfg.Kubernetes.PullSecret != "pull" || cfg.Kubernetes.RegistryCredentials == "") {
				t.Errorf("ports %+v, configuration %+v", service.Spec.Ports, cfg.Kubernetes)
			}
		})
	}

	for want, args := range map[string][]string{
		"registry.repository is missing": {"--set", "image.repository=x"},
		"image.repository is missing":    {"--set", "registry.repository=x"},
		"'sandbox' not allowed":          append([]string{"--set", "sandbox.namespace=x"}, must...),
		"pullPolicy":                     append([]string{"--set", "image.pullPolicy=Sometimes"}, must...),
	} {
		if _, err := helm(t, chart, append([]string{"template"}, args...)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("helm template %s: %v, want %q", strings.Join(args, " "), err, want)
		}
	}
}
