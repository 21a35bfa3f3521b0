package main

import (
	"encoding/json"
	"fmt"
	"path"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"miren.dev/runtime/components/shim/internal/launch"
)

// Annotations of a container's spec.
const (
	containerType = launch.ContainerType
	flagPrefix    = "dev.gvisor.flag."

	startAnnotation             = "dev.miren.runtime/start"
	restoreImageAnnotation      = "dev.miren.runtime/restore-image"
	restoreBackgroundAnnotation = "dev.miren.runtime/restore-background"
)

// ociSpec is a container's config.json. Only fields that are read or changed are decoded: the rest, which may be newer
// than the types this module is built with, passes unchanged.
type ociSpec struct {
	Annotations map[string]string
	Mounts      []specs.Mount
	Env         []string

	all, process map[string]json.RawMessage
	linux        struct {
		Namespaces  []specs.LinuxNamespace
		CgroupsPath string
		Resources   map[string]json.RawMessage
	}
	changed bool
}

func parseSpec(data []byte) (*ociSpec, error) {
	s := &ociSpec{}
	if err := json.Unmarshal(data, &s.all); err != nil {
		return nil, fmt.Errorf("decode spec: %w", err)
	}
	for key, into := range map[string]any{
		"annotations": &s.Annotations, "mounts": &s.Mounts, "process": &s.process, "linux": &s.linux,
	} {
		if raw, ok := s.all[key]; ok {
			if err := json.Unmarshal(raw, into); err != nil {
				return nil, fmt.Errorf("decode %s of spec: %w", key, err)
			}
		}
	}
	if raw, ok := s.process["env"]; ok {
		if err := json.Unmarshal(raw, &s.Env); err != nil {
			return nil, fmt.Errorf("decode process.env of spec: %w", err)
		}
	}
	return s, nil
}

// encode returns the spec as JSON, with the changes that were made.
func (s *ociSpec) encode() ([]byte, error) {
	if s.all == nil {
		s.all = map[string]json.RawMessage{}
	}
	set := func(in map[string]json.RawMessage, key string, value any, empty bool) error {
		if empty {
			return nil
		}
		raw, err := json.Marshal(value)
		in[key] = raw
		return err
	}
	if s.process != nil {
		if err := set(s.process, "env", s.Env, len(s.Env) == 0); err != nil {
			return nil, err
		}
	}
	for _, err := range []error{
		set(s.all, "annotations", s.Annotations, len(s.Annotations) == 0),
		set(s.all, "process", s.process, s.process == nil),
	} {
		if err != nil {
			return nil, err
		}
	}
	return json.Marshal(s.all)
}

// networkNamespace is the path of the network namespace that the container joins; empty when it gets a new one.
func (s *ociSpec) networkNamespace() string {
	for _, n := range s.linux.Namespaces {
		if n.Type == specs.NetworkNamespace {
			return n.Path
		}
	}
	return ""
}

// defaultAnnotation sets an annotation the spec does not have.
func (s *ociSpec) defaultAnnotation(key, value string) {
	if _, ok := s.Annotations[key]; ok {
		return
	}
	if s.Annotations == nil {
		s.Annotations = map[string]string{}
	}
	s.Annotations[key] = value
	s.changed = true
}

// defaultEnv sets a variable the process does not have.
func (s *ociSpec) defaultEnv(name, value string) {
	if s.process == nil { // no process, as in the specs of some tests
		return
	}
	env, added := withDefaultEnv(s.Env, name, value)
	s.Env = env
	s.changed = s.changed || added
}

// withDefaultEnv returns env with a variable that it lacks.
func withDefaultEnv(env []string, name, value string) (_ []string, added bool) {
	for _, e := range env {
		if n, _, _ := strings.Cut(e, "="); n == name {
			return env, false
		}
	}
	return append(env, name+"="+value), true
}

// bindFile mounts a host file read-only, unless the spec mounts something there already. It reports whether it did.
func (s *ociSpec) bindFile(source, destination string) bool {
	for _, m := range s.Mounts {
		if path.Clean(m.Destination) == destination {
			return false
		}
	}
	m := specs.Mount{
		Type:        "bind",
		Source:      source,
		Destination: destination,
		Options:     []string{"bind", "ro", "nosuid", "nodev", "noexec"},
	}
	s.Mounts = append(s.Mounts, m)
	// Added to the raw list, so that fields of the others that we do not know survive.
	var list []json.RawMessage
	if raw, ok := s.all["mounts"]; ok {
		if json.Unmarshal(raw, &list) != nil {
			return false // parseSpec has decoded it: cannot happen
		}
	}
	added, err := json.Marshal(m)
	if err != nil {
		return false // a struct of strings: cannot happen
	}
	raw, err := json.Marshal(append(list, added))
	if err != nil {
		return false
	}
	if s.all == nil {
		s.all = map[string]json.RawMessage{}
	}
	s.all["mounts"] = raw
	s.changed = true
	return true
}
