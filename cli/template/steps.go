package template

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/pkg/errs"
)

// readSteps reads the steps of a build from a YAML file: a list of which each
// entry has one key, the kind of the step.
//
//   - from: debian:bookworm
//   - workdir: /app
//   - copy: [requirements.txt, .]
//   - env: {LANG: C.UTF-8}
//   - run: pip install -r requirements.txt
func readSteps(file string) ([]sandbox.BuildStep, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, errs.New(errs.InvalidArgument, "steps: %w", err)
	}
	var list []map[string]yaml.Node
	if err := yaml.Unmarshal(b, &list); err != nil {
		return nil, errs.New(errs.InvalidArgument, "%s: %w", file, err).WithHint("it is a list such as\n- from: debian:bookworm\n- run: apt-get update")
	}
	var steps []sandbox.BuildStep
	for i, entry := range list {
		if len(entry) != 1 {
			return nil, errs.New(errs.InvalidArgument, "%s: entry %d has %d keys, a step has one", file, i+1, len(entry))
		}
		for kind, n := range entry {
			s := sandbox.BuildStep{Kind: sandbox.BuildStepKind(kind)}
			if !s.Kind.Valid() {
				return nil, errs.New(errs.InvalidArgument, "%s:%d: %q is not a step", file, n.Line, kind).
					WithHint("the steps are %s", strings.Join(s.Kind.Choices(), ", "))
			}
			if s.Args, err = arguments(&n); err != nil {
				return nil, errs.New(errs.InvalidArgument, "%s:%d: %s: %w", file, n.Line, kind, err)
			}
			steps = append(steps, s)
		}
	}
	return steps, nil
}

// arguments returns the arguments of a step: one, a list, or names and values.
func arguments(n *yaml.Node) ([]string, error) {
	switch n.Kind {
	case yaml.SequenceNode:
		var list []string
		return list, n.Decode(&list)
	case yaml.MappingNode:
		m := map[string]string{}
		if err := n.Decode(&m); err != nil {
			return nil, err
		}
		var list []string
		for _, k := range slices.Sorted(maps.Keys(m)) {
			list = append(list, k, m[k])
		}
		return list, nil
	case yaml.ScalarNode:
		return []string{n.Value}, nil
	}
	return nil, fmt.Errorf("it is neither text, nor a list, nor names with values")
}
