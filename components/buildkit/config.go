package buildkit

import (
	"bytes"
	"net/netip"
	"os"
	"path/filepath"
	"text/template"

	"miren.dev/runtime/components/cgroup"
	"miren.dev/runtime/components/network/resolver"
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

[dns]
  nameservers = [{{range .Nameservers}}{{printf "%q, " .}}{{end}}]
  searchDomains = [{{range .Search}}{{printf "%q, " .}}{{end}}]
  options = [{{range .Options}}{{printf "%q, " .}}{{end}}]

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

[limits]
memory_bytes = {{.MemoryBytes}}
tasks = {{.Tasks}}
disk_bytes = {{.DiskBytes}}
disk_free_bytes = {{.DiskFreeBytes}}
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

// configFile is a file that buildkitd, the shim or the CNI plugins read.
type configFile struct {
	path    string
	content []byte
}

func render(path string, t *template.Template, data map[string]any) (configFile, error) {
	var b bytes.Buffer
	if err := t.Execute(&b, data); err != nil {
		return configFile{}, errs.New(errs.Internal, "%s: %w", path, err)
	}
	return configFile{path, b.Bytes()}, nil
}

// configFiles are those of buildkitd and of the CNI plugins; the first one is
// buildkitd's own.
func (d *Daemon) configFiles(subnet netip.Prefix, dns resolver.Resolver) ([]configFile, error) {
	cni := d.runFile("cni.conflist")
	var servers []string
	for _, a := range dns.Servers {
		servers = append(servers, a.String())
	}
	var files []configFile
	for _, f := range []struct {
		path string
		t    *template.Template
		data map[string]any
	}{
		{d.runFile("buildkitd.toml"), configTemplate, map[string]any{
			"Root":          d.root(),
			"Socket":        d.Socket(),
			"Containerd":    d.cfg.Containerd.Socket(),
			"Namespace":     d.cfg.Containerd.Namespace(),
			"Parallelism":   d.cfg.Parallelism,
			"Cgroup":        d.cgroup(),
			"CNIConfig":     cni,
			"CNIBin":        filepath.Join(d.cfg.BinDir, "cni"),
			"Runsc":         d.runscConfig(),
			"CacheBytes":    d.cfg.CacheBytes,
			"ReservedBytes": d.cfg.CacheBytes / 10,
			"LocalBytes":    d.cfg.CacheBytes / 20,
			"MinFreeBytes":  d.cfg.MinFreeBytes,
			"Nameservers":   servers,
			"Search":        dns.Search,
			"Options":       dns.Options,
		}},
		{cni, cniTemplate, map[string]any{
			"Name":      d.cfg.Instance.Name("build"),
			"Bridge":    d.bridge(),
			"Addresses": d.runFile("addresses"),
			"Subnet":    subnet,
			"MTU":       mtu(),
		}},
	} {
		c, err := render(f.path, f.t, f.data)
		if err != nil {
			return nil, err
		}
		files = append(files, c)
	}
	return files, nil
}

func (d *Daemon) runscConfig() string { return d.runFile("runsc.toml") }

// runscFile is what the shim reads when it creates a container, so a change of it
// needs no new buildkitd.
func (d *Daemon) runscFile() (configFile, error) {
	return render(d.runscConfig(), runscTemplate, map[string]any{
		"Binary":        filepath.Join(d.cfg.BinDir, "runsc"),
		"Root":          d.runFile("runsc"),
		"CABundle":      d.cfg.CABundle,
		"MemoryBytes":   d.limits.MemoryBytes + cgroup.Overhead,
		"Tasks":         cgroup.Tasks(d.limits.Processes),
		"DiskBytes":     d.limits.DiskBytes,
		"DiskFreeBytes": d.limits.DiskFreeBytes,
	})
}

// writeConfig writes files, which is done before every start.
func writeConfig(files ...configFile) error {
	for _, f := range files {
		if err := atomicfile.Write(f.path, f.content, 0o644, atomicfile.Volatile); err != nil {
			return errs.New(errs.FailedPrecondition, "write build configuration: %w", err)
		}
	}
	return nil
}

// startedWith says whether the running buildkitd was started with these files.
func startedWith(files []configFile) bool {
	b, err := os.ReadFile(files[0].path)
	return err == nil && bytes.Equal(b, files[0].content)
}
