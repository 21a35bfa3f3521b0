package docker

import (
	"strings"
	"testing"

	"miren.dev/runtime/pkg/errs"
)

func TestRuntimesThatDoNotIsolateAreRefused(t *testing.T) {
	whole := []string{"--host-uds=open", "--in-sandbox-cgroup=v2", "--overlay2=root:self,size=10g"}
	r, err := runscRuntime(whole)
	if err != nil || !r.gvisor || r.diskBytes != 10<<30 {
		t.Errorf("%+v, %v", r, err)
	}
	for i, flag := range whole {
		args := append(append([]string{}, whole[:i]...), whole[i+1:]...)
		name, _, _ := strings.Cut(flag, "=")
		if _, err := runscRuntime(args); !errs.Is(err, errs.FailedPrecondition) || !strings.Contains(err.Error(), name) {
			t.Errorf("without %s: %v", flag, err)
		}
	}
	for _, overlay := range []string{"none", "root:self", "root:memory,size=1g", "root:self,size=", "root:self,size=x", "root:self,size=0"} {
		if _, err := runscRuntime(append(whole[:2:2], "--overlay2="+overlay)); !errs.Is(err, errs.FailedPrecondition) {
			t.Errorf("overlay2=%s: %v", overlay, err)
		}
	}
}

func TestSizes(t *testing.T) {
	for text, want := range map[string]int64{"1": 1, "16777216": 16 << 20, "2k": 2 << 10, "64M": 64 << 20, "10g": 10 << 30, "1t": 1 << 40} {
		if got, err := parseSize(text); got != want || err != nil {
			t.Errorf("%s: %d, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "g", "-1g", "1gb", "9999999999t", "1.5g"} {
		if got, err := parseSize(text); err == nil {
			t.Errorf("%q: %d", text, got)
		}
	}
}

func TestAddressesOfEngines(t *testing.T) {
	for _, host := range []string{"", "tcp://127.0.0.1:2375", "unix://", "unix://docker.sock", "/var/run/docker.sock"} {
		if _, err := newEngine(host); !errs.Is(err, errs.InvalidArgument) {
			t.Errorf("%q: %v", host, err)
		}
	}
	c, err := newEngine("unix:///var/run/docker.sock")
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
}
