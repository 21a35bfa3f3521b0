package stack

import (
	"encoding/json"
	"path"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// packageJSON is what matters of one.
type packageJSON struct {
	Name                 string            `json:"name"`
	Main                 string            `json:"main"`
	Module               string            `json:"module"`
	Scripts              map[string]string `json:"scripts"`
	Dependencies         map[string]string `json:"dependencies"`
	OptionalDependencies map[string]string `json:"optionalDependencies"`
	DevDependencies      map[string]string `json:"devDependencies"`
	PackageManager       string            `json:"packageManager"`
	Workspaces           json.RawMessage   `json:"workspaces"`
	Engines              versions          `json:"engines"`
	Volta                versions          `json:"volta"`
}

// versions maps programs to what a project asks for. Old projects have a list there, which is no map.
type versions map[string]string

func (v *versions) UnmarshalJSON(b []byte) error {
	var m map[string]any
	if json.Unmarshal(b, &m) != nil {
		return nil
	}
	*v = versions{}
	for name, value := range m {
		if s, ok := value.(string); ok {
			(*v)[name] = strings.TrimSpace(s)
		}
	}
	return nil
}

func (j *packageJSON) depends(name string) bool {
	_, a := j.Dependencies[name]
	_, b := j.DevDependencies[name]
	return a || b
}

// readPackage reads the package.json of a folder.
func (s *source) readPackage(dir string) (*packageJSON, error) {
	name := path.Join(dir, "package.json")
	text, err := s.read(name)
	if err != nil {
		return nil, err
	}
	j := &packageJSON{}
	if err := json.Unmarshal([]byte(text), j); err != nil {
		return nil, jsonError(name, text, err)
	}
	return j, nil
}

// workspacePatterns are those of the root's package.json or of pnpm-workspace.yaml.
func (s *source) workspacePatterns(j *packageJSON) []string {
	var list []string
	if json.Unmarshal(j.Workspaces, &list) == nil && len(list) > 0 {
		return list
	}
	var object struct {
		Packages []string `json:"packages" yaml:"packages"`
	}
	if json.Unmarshal(j.Workspaces, &object) == nil && len(object.Packages) > 0 {
		return object.Packages
	}
	if text, err := s.read("pnpm-workspace.yaml"); err == nil && yaml.Unmarshal([]byte(text), &object) == nil {
		return object.Packages
	}
	return nil
}

// workspaces are the folders of the packages that belong to the root's, sorted.
func (s *source) workspaces(j *packageJSON) []string {
	var dirs []string
	var not []string
	for _, pattern := range s.workspacePatterns(j) {
		if n, ok := strings.CutPrefix(pattern, "!"); ok {
			not = append(not, path.Clean(n))
			continue
		}
		pattern = path.Clean(pattern)
		patterns := []string{pattern}
		if deep, ok := strings.CutSuffix(pattern, "/**"); ok {
			patterns = []string{deep + "/*", deep + "/*/*"}
		}
		for _, p := range patterns {
			for _, f := range s.glob(p + "/package.json") {
				dirs = append(dirs, path.Dir(f))
			}
		}
	}
	slices.Sort(dirs)
	return slices.DeleteFunc(slices.Compact(dirs), func(d string) bool {
		return d == "." || strings.Contains(d, "node_modules") || slices.ContainsFunc(not, func(n string) bool {
			ok, _ := path.Match(n, d)
			return ok
		})
	})
}
