package buildkit

import (
	"bytes"
	"net/netip"
	"path/filepath"
	"text/template"

	"miren.dev/runtime/pkg/atomicfile"
	"miren.dev/runtime/pkg/errs"
)

// hostname is what every step is called. BuildKit reuses the network
// namespaces of steps that have no host name of their own, and gVisor leaves
// nothing usable in one: with a name each step gets a new one.
const hostname = "builder"

var configTemplate = template.Must(template.New("buildkitd.toml").Parse(`# Written by runtime at every start; changes are lost.
root = "{{.Root}}"

[grpc]
  address = ["unix://{{.Socket}}"]

[log]
  level = "warn"
  format = "json"

[cdi]
  disabled = true

[history]
  maxAge = 86400
  maxEntries = 20

[worker.oci]
  enabled = false

[worker.containerd]
  enabled = true
  address = "{{.Containerd}}"
  namespace = "{{.Namespace}}"
  snapshotter = "overlayfs"
  max-parallelism = {{.Parallelism}}
  defaultCgroupParent = "{{.Cgroup}}"
  networkMode = "cni"
  cniConfigPath = "{{.CNIConfig}}"
  cniBinaryPath = "{{.CNIBin}}"
  cniPoolSize = 0
  gc = true

  [worker.containerd.runtime]
    name = "io.containerd.runsc.v1"
    options = { TypeUrl = "io.containerd.runsc.v1.options", ConfigPath = "{{.Runsc}}" }

  # What can be had again cheaply goes first.
  [[worker.containerd.gcpolicy]]
    filters = ["type==source.local"]
    keepDuration = 172800
    maxUsedSpace = {{.LocalBytes}}
  [[worker.containerd.gcpolicy]]
    all = true
    reservedSpace = {{.ReservedBytes}}
    maxUsedSpace = {{.CacheBytes}}
    minFreeSpace = {{.MinFreeBytes}}
`))

var runscTemplate = template.Must(template.New("runsc.toml").Parse(`# Written by runtime at every start; changes are lost.
binary_name = "{{.Binary}}"
root = "{{.Root}}"

[runsc_config]
network = "sandbox"
platform = "systrap"
overlay2 = "none"

[runtime]
ca_bundle = "{{.CABundle}}"
ca = "{{if .CABundle}}env{{else}}off{{end}}"
`))

var cniTemplate = template.Must(template.New("cni.conflist").Parse(`{
  "cniVersion": "1.0.0",
  "name": "{{.Name}}",
  "plugins": [{
    "type": "bridge",
    "bridge": "{{.Bridge}}",
    "isGateway": true,
    "ipMasq": false,
    "mtu": {{.MTU}},
    "ipam": {
      "type": "host-local",
      "dataDir": "{{.Addresses}}",
      "ranges": [[{"subnet": "{{.Subnet}}"}]],
      "routes": [{"dst": "0.0.0.0/0"}]
    }
  }]
}
`))

// writeConfig writes what buildkitd, the shim and the CNI plugins read.
func (d *Daemon) writeConfig(subnet netip.Prefix) error {
	runsc, cni := d.runFile("runsc.toml"), d.runFile("cni.conflist")
	for _, f := range []struct {
		path string
		t    *template.Template
		data map[string]any
	}{
		{runsc, runscTemplate, map[string]any{
			"Binary":   filepath.Join(d.cfg.BinDir, "runsc"),
			"Root":     d.runFile("runsc"),
			"CABundle": d.cfg.CABundle,
		}},
		{cni, cniTemplate, map[string]any{
			"Name":      d.cfg.Instance.Name("build"),
			"Bridge":    d.bridge(),
			"Addresses": d.runFile("addresses"),
			"Subnet":    subnet,
			"MTU":       mtu(),
		}},
		{d.runFile("buildkitd.toml"), configTemplate, map[string]any{
			"Root":          d.root(),
			"Socket":        d.Socket(),
			"Containerd":    d.cfg.Containerd.Socket(),
			"Namespace":     d.cfg.Containerd.Namespace(),
			"Parallelism":   d.cfg.Parallelism,
			"Cgroup":        d.cgroup(),
			"CNIConfig":     cni,
			"CNIBin":        filepath.Join(d.cfg.BinDir, "cni"),
			"Runsc":         runsc,
			"CacheBytes":    d.cfg.CacheBytes,
			"ReservedBytes": d.cfg.CacheBytes / 10,
			"LocalBytes":    d.cfg.CacheBytes / 20,
			"MinFreeBytes":  d.cfg.MinFreeBytes,
		}},
	} {
		var b bytes.Buffer
		if err := f.t.Execute(&b, f.data); err != nil {
			return errs.New(errs.Internal, "%s: %w", f.path, err)
		}
		// It is written before every start.
		if err := atomicfile.Write(f.path, b.Bytes(), 0o644, atomicfile.Volatile); err != nil {
			return errs.New(errs.FailedPrecondition, "write build configuration: %w", err)
		}
	}
	return nil
}
