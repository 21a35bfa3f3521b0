package main

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// rewrite runs change on the spec and returns the result, decoded.
func rewrite(t *testing.T, spec string, change func(*ociSpec)) (map[string]any, *ociSpec) {
	t.Helper()
	s, err := parseSpec([]byte(spec))
	if err != nil {
		t.Fatal(err)
	}
	change(s)
	data, err := s.encode()
	if err != nil {
		t.Fatal(err)
	}
	var out map[string]any
	if err := json.Unmarshal(data, &out); err != nil {
		t.Fatal(err)
	}
	return out, s
}

func TestSpecKeepsWhatItDoesNotKnow(t *testing.T) {
	const spec = `{"ociVersion":"9.9","process":{"env":["A=1"],"user":{"uid":7},"future":[1]},
		"mounts":[{"destination":"/a","source":"s","future":true}],"linux":{"netDevices":{"eth0":{}}},"vm":{"x":1}}`
	var want map[string]any
	if err := json.Unmarshal([]byte(spec), &want); err != nil {
		t.Fatal(err)
	}
	got, s := rewrite(t, spec, func(*ociSpec) {})
	if s.changed || !reflect.DeepEqual(got, want) {
		t.Errorf("untouched spec: changed=%v\n got %v\nwant %v", s.changed, got, want)
	}

	got, _ = rewrite(t, spec, func(s *ociSpec) {
		s.defaultEnv("B", "2")
		s.bindFile("/host", "/b")
		s.defaultAnnotation("k", "v")
	})
	process := want["process"].(map[string]any)
	process["env"] = []any{"A=1", "B=2"}
	want["mounts"] = append(want["mounts"].([]any), map[string]any{
		"type": "bind", "source": "/host", "destination": "/b",
		"options": []any{"bind", "ro", "nosuid", "nodev", "noexec"},
	})
	want["annotations"] = map[string]any{"k": "v"}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("changed spec:\n got %v\nwant %v", got, want)
	}
}

func TestSpecDefaults(t *testing.T) {
	_, s := rewrite(t, `{"process":{"env":["A=own","EMPTY="]},"annotations":{"k":"own"},
		"mounts":[{"destination":"/a/../b/"}]}`, func(s *ociSpec) {
		s.defaultEnv("A", "x")
		s.defaultEnv("EMPTY", "x")
		s.defaultAnnotation("k", "x")
		if s.bindFile("/host", "/b") {
			t.Error("bindFile mounted over a mount of the spec")
		}
	})
	if s.changed {
		t.Errorf("the spec's own values were replaced: %v %v %v", s.Env, s.Annotations, s.Mounts)
	}

	_, s = rewrite(t, `{}`, func(s *ociSpec) {
		s.defaultAnnotation(containerType, "sandbox")
		s.defaultEnv("A", "x")
	})
	if s.Annotations[containerType] != "sandbox" || len(s.Env) != 0 {
		t.Errorf("spec without process: annotations %v, env %v", s.Annotations, s.Env)
	}
}

func TestParseSpecRefusesNonsense(t *testing.T) {
	for _, spec := range []string{``, `[]`, `{"annotations":[]}`, `{"mounts":{}}`, `{"process":{"env":"A"}}`, `{"linux":1}`} {
		if _, err := parseSpec([]byte(spec)); err == nil {
			t.Errorf("parseSpec(%s) = nil error", spec)
		}
	}
}

func TestNetworkNamespace(t *testing.T) {
	for spec, want := range map[string]string{
		`{}`: "",
		`{"linux":{"namespaces":[{"type":"pid"},{"type":"network"}]}}`:                         "",
		`{"linux":{"namespaces":[{"type":"pid","path":"/p"},{"type":"network","path":"/n"}]}}`: "/n",
	} {
		s, err := parseSpec([]byte(spec))
		if err != nil {
			t.Fatal(err)
		}
		if got := s.networkNamespace(); got != want {
			t.Errorf("networkNamespace of %s = %q, want %q", spec, got, want)
		}
	}
}

func TestAddCA(t *testing.T) {
	_, s := rewrite(t, `{"process":{"env":["PIP_CERT=/own"]}}`, func(s *ociSpec) {
		got := s.addCA(caFiles{bundle: "/host/ca", apt: "/bundle/apt.conf"})
		if want := []string{caPath, aptPath}; !slices.Equal(got, want) {
			t.Errorf("mounted %v, want %v", got, want)
		}
	})
	for _, want := range []string{"PIP_CERT=/own", "SSL_CERT_FILE=" + caPath, "APT_CONFIG=" + aptPath} {
		if !slices.Contains(s.Env, want) {
			t.Errorf("no %s in %v", want, s.Env)
		}
	}

	_, s = rewrite(t, `{"process":{}}`, func(s *ociSpec) {
		if got := s.addCA(caFiles{bundle: "/host/ca"}); !slices.Equal(got, []string{caPath}) {
			t.Errorf("mounted %v", got)
		}
	})
	if slices.ContainsFunc(s.Env, func(e string) bool { return strings.HasPrefix(e, "APT_CONFIG=") }) {
		t.Errorf("APT_CONFIG without its file: %v", s.Env)
	}
}

func TestCABundle(t *testing.T) {
	bundle := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(bundle, []byte("x\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for path, fails := range map[string]bool{"": false, bundle: false, "ca.crt": true, bundle + ".not": true} {
		var c config
		c.Runtime.CABundle = path
		got, err := c.caBundle()
		if (err != nil) != fails || err == nil && got != path {
			t.Errorf("%q: %q, %v", path, got, err)
		}
	}
}

// tree makes files of name and content below a new directory; a name that ends in a slash is a directory.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for _, name := range slices.Sorted(maps.Keys(files)) {
		p := filepath.Join(root, name)
		dir := filepath.Dir(p)
		if strings.HasSuffix(name, "/") {
			dir = p
		}
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if dir != p {
			if err := os.WriteFile(p, []byte(files[name]), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	return root
}

func TestPrepareCA(t *testing.T) {
	const host = "/host/ca.crt"
	files, err := prepareCA(host, t.TempDir(), tree(t, map[string]string{"etc/apt/": ""}))
	if err != nil || files.bundle != host {
		t.Fatalf("%+v, %v", files, err)
	}
	if conf, err := os.ReadFile(files.apt); err != nil || !strings.Contains(string(conf), caPath) {
		t.Errorf("apt.conf %q, %v", conf, err)
	}
	files, err = prepareCA(host, t.TempDir(), tree(t, map[string]string{"bin/": ""}))
	if err != nil || files != (caFiles{bundle: host}) {
		t.Errorf("image without apt: %+v, %v", files, err)
	}
}

func TestMountPointsAreMadeAndRemoved(t *testing.T) {
	root := tree(t, map[string]string{"run/lock/": ""})
	missing, err := stubs(root, []string{caPath, aptPath})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"run/runtime/ca-certificates.crt", "run/runtime/apt.conf", "run/runtime"}
	if !slices.Equal(missing, want) {
		t.Fatalf("stubs = %v, want %v", missing, want)
	}

	make := func(files map[string]string) {
		for name, content := range files {
			p := filepath.Join(root, name)
			if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(p, []byte(content), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	exists := func(name string) bool {
		_, err := os.Lstat(filepath.Join(root, name))
		return err == nil
	}
	make(map[string]string{want[0]: "", want[1]: ""})
	if err := removeStubs(root, missing); err != nil {
		t.Fatal(err)
	}
	if exists("run/runtime") || !exists("run/lock") {
		t.Error("not as it was before")
	}

	// What the container put there stays.
	make(map[string]string{want[0]: "", want[1]: "written", "run/runtime/own": ""})
	if err := removeStubs(root, missing); err != nil {
		t.Fatal(err)
	}
	if exists(want[0]) || !exists(want[1]) || !exists("run/runtime/own") {
		t.Error("removed the container's files, or kept ours")
	}

	// And nothing is removed through a link.
	outside := tree(t, map[string]string{"apt.conf": "", "ca-certificates.crt": ""})
	if err := os.RemoveAll(filepath.Join(root, "run/runtime")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, filepath.Join(root, "run/runtime")); err != nil {
		t.Fatal(err)
	}
	if err := removeStubs(root, missing); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(outside, "apt.conf")); err != nil {
		t.Error("a file outside the root was removed")
	}
}

func TestExecSpec(t *testing.T) {
	c := &container{ca: true}
	spec, err := c.execSpec(anyJSON(t, `{"args":["x"],"env":["CURL_CA_BUNDLE=/own"],"future":1}`))
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Args   []string
		Env    []string
		Future int
	}
	if err := json.Unmarshal(spec.GetValue(), &got); err != nil {
		t.Fatal(err)
	}
	if got.Future != 1 || len(got.Args) != 1 || got.Env[0] != "CURL_CA_BUNDLE=/own" ||
		!slices.Contains(got.Env, "SSL_CERT_FILE="+caPath) || len(got.Env) != len(caVariables) {
		t.Errorf("process %+v", got)
	}
}
