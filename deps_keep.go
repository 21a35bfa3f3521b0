//go:build deps

package runtime

import (
	_ "github.com/BurntSushi/toml"
	_ "github.com/coder/websocket"
	_ "github.com/containerd/cgroups/v3/cgroup1"
	_ "github.com/containerd/containerd/v2/client"
	_ "github.com/containerd/errdefs"
	_ "github.com/containernetworking/cni/libcni"
	_ "github.com/creack/pty"
	_ "github.com/fxamacker/cbor/v2"
	_ "github.com/google/go-cmp/cmp"
	_ "github.com/google/nftables"
	_ "github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/klauspost/compress/zstd"
	_ "github.com/moby/buildkit/client"
	_ "github.com/moby/buildkit/client/llb"
	_ "github.com/moby/buildkit/frontend/dockerfile/builder"
	_ "github.com/moby/buildkit/session/filesync"
	_ "github.com/moby/buildkit/util/progress/progressui"
	_ "github.com/moby/patternmatcher/ignorefile"
	_ "github.com/prometheus/client_golang/prometheus/promhttp"
	_ "github.com/rogpeppe/go-internal/testscript"
	_ "github.com/spf13/cobra"
	_ "github.com/tonistiigi/fsutil"
	_ "github.com/vishvananda/netlink"
	_ "go.yaml.in/yaml/v3"
	_ "golang.org/x/sync/errgroup"
	_ "golang.org/x/sys/unix"
	_ "golang.org/x/term"
)
