package agentdriver

import (
	"cmp"
	"path/filepath"
	"slices"
	"strings"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"miren.dev/runtime/components/agent"
	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/pkg/errs"
)

// reserved are the paths of a sandbox whose mounts are the driver's.
var reserved = []string{"/proc", "/sys", "/dev", "/run/runtime"}

// CheckSpec returns InvalidArgument for a specification of which no driver can make a sandbox.
func CheckSpec(s execution.Spec) error {
	if err := CheckID(s.ID); err != nil {
		return err
	}
	if s.Image == "" && s.Restore == "" {
		return errs.New(errs.InvalidArgument, "sandbox %s: no image", s.ID)
	}
	if s.Network != execution.NetworkBridge && s.Network != execution.NetworkNone {
		return errs.New(errs.InvalidArgument, "sandbox %s: network %q is neither %q nor %q", s.ID, s.Network, execution.NetworkBridge, execution.NetworkNone)
	}
	if s.Egress != nil {
		return errs.Wrap(s.Egress.Validate(), "sandbox %s", s.ID)
	}
	return errs.Wrap(CheckMounts(s.Mounts), "sandbox %s", s.ID)
}

// CheckMounts refuses mounts that would hide those of the driver or one another.
func CheckMounts(mounts []execution.Mount) error {
	for i, m := range mounts {
		if !filepath.IsAbs(m.Source) || filepath.Clean(m.Source) != m.Source || m.Source == "/" {
			return errs.New(errs.InvalidArgument, "mount source %q is not an absolute path of a directory", m.Source)
		}
		if !filepath.IsAbs(m.Target) || filepath.Clean(m.Target) != m.Target || m.Target == "/" {
			return errs.New(errs.InvalidArgument, "mount target %q is not a clean absolute path", m.Target).WithHint("a path such as /data")
		}
		if slices.ContainsFunc(reserved, func(dir string) bool { return within(m.Target, dir) || within(dir, m.Target) }) {
			return errs.New(errs.InvalidArgument, "nothing can be mounted on %s", m.Target).WithHint("choose a path apart from %s", strings.Join(reserved, ", "))
		}
		for _, o := range mounts[:i] {
			if within(m.Target, o.Target) || within(o.Target, m.Target) {
				return errs.New(errs.InvalidArgument, "mounts on %s and %s hide each other", o.Target, m.Target)
			}
		}
	}
	return nil
}

// within reports whether path is dir or below it.
func within(path, dir string) bool {
	rest, ok := strings.CutPrefix(path, dir)
	return ok && (rest == "" || rest[0] == '/')
}

// GuestConfig merges an image's configuration and a specification. env is below both.
func GuestConfig(s execution.Spec, image ocispec.ImageConfig, env ...string) (agent.GuestConfig, error) {
	command := s.Command
	switch {
	case s.Idle:
		command = nil
	case len(command) == 0:
		command = slices.Concat(image.Entrypoint, image.Cmd)
	}
	capabilities, err := s.Capabilities.Names()
	return agent.GuestConfig{
		Command: command,
		Env:     MergeEnv(env, image.Env, s.Env),
		WorkDir: cmp.Or(s.WorkDir, image.WorkingDir),
		User:    cmp.Or(s.User, image.User),
		Start:   agent.StartOnRequest,
		PIDs:    s.PIDs,
		CPUs:    agent.CPUs(s.CPUMillis),

		Claimable:    s.Idle,
		Capabilities: capabilities,
	}, err
}

// MergeEnv joins environments; the last value of a variable wins.
func MergeEnv(envs ...[]string) []string {
	var out []string
	index := map[string]int{}
	for _, e := range slices.Concat(envs...) {
		name := envName(e)
		if i, ok := index[name]; ok {
			out[i] = e
			continue
		}
		index[name] = len(out)
		out = append(out, e)
	}
	return out
}

func envName(e string) string {
	name, _, _ := strings.Cut(e, "=")
	return name
}
