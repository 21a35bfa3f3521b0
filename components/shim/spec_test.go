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
		got := s.addCA(caFiles{bundle: "/host/ca", apt: "/bundle/apt.conf", system: "/bundle/ca"})
		if want := []string{caPath, aptPath, systemCAPath}; !slices.Equal(got, want) {
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

func TestCAPolicy(t *testing.T) {
	bundle := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(bundle, []byte("x\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		conf        config
		annotations map[string]string
		env         map[string]string
		want        caMode
		fails       bool
	}{
		"nothing":                   {want: caOff},
		"bundle alone":              {env: map[string]string{"RUNTIME_CA_BUNDLE": bundle}, want: caOff},
		"all by environment":        {env: map[string]string{"RUNTIME_CA_BUNDLE": bundle, "RUNTIME_CA_ALL": "1"}, want: caSystem},
		"by annotation":             {env: map[string]string{"RUNTIME_CA_BUNDLE": bundle}, annotations: map[string]string{caAnnotation: "true"}, want: caSystem},
		"annotation says no":        {conf: conf(bundle, "env", ""), annotations: map[string]string{caAnnotation: "false"}, want: caOff},
		"by options":                {conf: conf(bundle, "env", ""), want: caEnv},
		"plain root":                {conf: conf(bundle, "system", "none"), want: caEnv},
		"overlay":                   {conf: conf(bundle, "system", "root:self"), want: caSystem},
		"overlay by annotation":     {conf: conf(bundle, "system", "none"), annotations: map[string]string{flagPrefix + "overlay2": "root:memory"}, want: caSystem},
		"relative":                  {conf: conf("ca.crt", "env", ""), fails: true},
		"unknown mode":              {conf: conf(bundle, "yes", ""), fails: true},
		"missing bundle":            {conf: conf(bundle+".not", "env", ""), fails: true},
		"missing bundle, not asked": {conf: conf(bundle+".not", "", ""), want: caOff},
	} {
		t.Run(name, func(t *testing.T) {
			mode, path, err := c.conf.caPolicy(c.annotations, func(k string) string { return c.env[k] })
			if mode != c.want || (err != nil) != c.fails {
				t.Errorf("caPolicy = %v, %v; want %v, error %v", mode, err, c.want, c.fails)
			}
			if mode != caOff && path != bundle {
				t.Errorf("bundle %q, want %q", path, bundle)
			}
		})
	}
}

func conf(bundle, ca, overlay string) config {
	var c config
	c.Runtime.CABundle, c.Runtime.CA = bundle, ca
	c.Flags = map[string]string{"allow-flag-override": "true"}
	if overlay != "" {
		c.Flags["overlay2"] = overlay
	}
	return c
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
	host := filepath.Join(tree(t, map[string]string{"ca.crt": "host\n"}), "ca.crt")
	debian := map[string]string{"etc/apt/": "", "etc/ssl/certs/ca-certificates.crt": "own"}

	bundle := t.TempDir()
	files, err := prepareCA(caSystem, host, bundle, tree(t, debian))
	if err != nil {
		t.Fatal(err)
	}
	merged, err := os.ReadFile(files.system)
	if err != nil || string(merged) != "own\nhost\n" {
		t.Errorf("merged bundle %q, %v", merged, err)
	}
	if conf, err := os.ReadFile(files.apt); err != nil || !strings.Contains(string(conf), caPath) {
		t.Errorf("apt.conf %q, %v", conf, err)
	}

	files, err = prepareCA(caEnv, host, t.TempDir(), tree(t, debian))
	if err != nil || files.system != "" {
		t.Errorf("env mode: %+v, %v", files, err)
	}
	files, err = prepareCA(caSystem, host, t.TempDir(), tree(t, map[string]string{"bin/": ""}))
	if err != nil || files != (caFiles{bundle: host}) {
		t.Errorf("image without certificates: %+v, %v", files, err)
	}
}

// An image that leads out of itself gets nothing of the host's.
func TestPrepareCAOfHostileImage(t *testing.T) {
	secret := tree(t, map[string]string{"certs/ca-certificates.crt": "secret"})
	host := filepath.Join(secret, "certs/ca-certificates.crt")
	for name, links := range map[string]map[string]string{
		"directory": {"etc/ssl": secret},
		"file":      {"etc/ssl/certs/ca-certificates.crt": host},
		"relative":  {"etc/ssl": strings.Repeat("../", 20) + secret},
	} {
		t.Run(name, func(t *testing.T) {
			root := tree(t, map[string]string{"etc/": ""})
			for link, target := range links {
				if err := os.MkdirAll(filepath.Dir(filepath.Join(root, link)), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.Symlink(target, filepath.Join(root, link)); err != nil {
					t.Fatal(err)
				}
			}
			files, err := prepareCA(caSystem, host, t.TempDir(), root)
			if err != nil || files.system != "" {
				t.Errorf("files %+v, %v", files, err)
			}
		})
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
