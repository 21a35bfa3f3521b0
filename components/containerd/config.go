package containerd

import (
	"bytes"
	"text/template"
)

// Plugins that no part of the system needs. containerd ignores those that are
// not built in.
var disabledPlugins = []string{
	"io.containerd.cri.v1.images",
	"io.containerd.cri.v1.runtime",
	"io.containerd.grpc.v1.cri",
	"io.containerd.differ.v1.erofs",
	"io.containerd.image-verifier.v1.bindir",
	"io.containerd.internal.v1.opt",
	"io.containerd.internal.v1.tracing",
	"io.containerd.monitor.container.v1.restart",
	"io.containerd.monitor.task.v1.cgroups", // the driver reads the cgroups itself
	"io.containerd.mount-handler.v1.erofs",
	"io.containerd.nri.v1.nri",
	"io.containerd.snapshotter.v1.blockfile",
	"io.containerd.snapshotter.v1.btrfs",
	"io.containerd.snapshotter.v1.devmapper",
	"io.containerd.snapshotter.v1.erofs",
	"io.containerd.snapshotter.v1.native",
	"io.containerd.snapshotter.v1.zfs",
	"io.containerd.tracing.processor.v1.otlp",
}

// The debug socket and the TCP listeners stay off: an empty address.
var configTemplate = template.Must(template.New("containerd.toml").Parse(`# Written by runtime at every start; changes are lost.
version = 3
root = "{{.Root}}"
state = "{{.State}}"
imports = []
disabled_plugins = [{{range .Disabled}}
  "{{.}}",{{end}}
]

[debug]
  level = "warn"
  format = "json"

[grpc]
  address = "{{.Socket}}"

[ttrpc]
  address = "{{.Socket}}.ttrpc"

[plugins."io.containerd.gc.v1.scheduler"]
  # A change of the images is followed by a collection soon, sandboxes coming and going are not.
  pause_threshold = 0.02
  deletion_threshold = 20
  mutation_threshold = 200
  schedule_delay = "1s"
  startup_delay = "5s"
`))

func (d *Daemon) config() []byte {
	var b bytes.Buffer
	// A template over strings, written to memory: it cannot fail.
	_ = configTemplate.Execute(&b, map[string]any{
		"Root":     d.Root(),
		"State":    d.StateDir(),
		"Socket":   d.Socket(),
		"Disabled": disabledPlugins,
	})
	return b.Bytes()
}
