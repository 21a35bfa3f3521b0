// Command image writes an image that docker load and podman load take.
//
//	image -name NAME:TAG -arch ARCH -time SECONDS -o FILE LAYER...
//
// The layers are tar files, the lowest first. The image starts a server in the
// foreground. The same layers give the same bytes.
package main

import (
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func run() error {
	tag := flag.String("name", "", "name and tag")
	arch := flag.String("arch", "", "architecture of the programs")
	at := flag.Int64("time", 0, "when it was made, in seconds since 1970")
	out := flag.String("o", "", "file to write")
	flag.Parse()
	if *tag == "" || *arch == "" || *out == "" || flag.NArg() == 0 {
		return fmt.Errorf("usage: image -name NAME:TAG -arch ARCH -time SECONDS -o FILE LAYER")
	}
	ref, err := name.NewTag(*tag)
	if err != nil {
		return err
	}
	img, err := build(*arch, time.Unix(*at, 0).UTC(), flag.Args())
	if err != nil {
		return err
	}
	return tarball.WriteToFile(*out, ref, img)
}

func build(arch string, at time.Time, files []string) (v1.Image, error) {
	var history []mutate.Addendum
	for _, file := range files {
		layer, err := tarball.LayerFromFile(file)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		history = append(history, mutate.Addendum{Layer: layer, History: v1.History{Created: v1.Time{Time: at}}})
	}
	img, err := mutate.Append(empty.Image, history...)
	if err != nil {
		return nil, err
	}
	config, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.Architecture, config.OS, config.Created = arch, "linux", v1.Time{Time: at}
	config.Config = v1.Config{
		Env:          []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "RUNTIME_INGRESS_HTTP_ADDRESS=0.0.0.0:80"},
		Entrypoint:   []string{"/usr/bin/tini", "--", "/usr/bin/runtime"},
		Cmd:          []string{"server", "run"},
		Volumes:      map[string]struct{}{"/var/lib/runtime": {}, "/var/cache/runtime": {}},
		ExposedPorts: map[string]struct{}{"80/tcp": {}},
		StopSignal:   "SIGTERM",
	}
	return mutate.ConfigFile(img, config)
}
