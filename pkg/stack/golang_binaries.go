package stack

import (
	"path"
	"slices"
	"strings"
)

// programs are the first words of the commands of services, tasks and the release, by their name.
func (s *source) programs() map[string]string {
	programs := map[string]string{}
	for _, svc := range s.cfg.Services {
		if words := strings.Fields(commandLine(svc.Command)); len(words) > 0 {
			programs[svc.Name] = words[0]
		}
	}
	for _, t := range s.cfg.Tasks {
		if words := strings.Fields(commandLine(t.Command)); len(words) > 0 {
			programs["task "+t.Name] = words[0]
		}
	}
	if words := strings.Fields(commandLine(s.cfg.Release)); len(words) > 0 {
		programs["release"] = words[0]
	}
	return programs
}

// otherBinaries are the main packages besides the chosen one that commands of services run by their folder's name.
func (s *source) otherBinaries(p *Plan, chosen goPackage, modules *goModules, found *goFound) []goPackage {
	var others []goPackage
	names := []string{base(chosen.binary)}
	programs := s.programs()
	for _, service := range sortedKeys(programs) {
		name := path.Base(programs[service])
		for _, dir := range found.mains {
			if g := modules.named(dir, ""); base(g.binary) == name && !slices.Contains(names, name) && dir != "." {
				p.because("%s runs %s: %s is built too", service, programs[service], g.path)
				names, others = append(names, name), append(others, g)
			}
		}
	}
	return others
}

// binaryFolder is the folder below the app's that commands run one of the binaries from: "bin" of "bin/web"; empty for
// none, and where the source has that file.
func (s *source) binaryFolder(binaries []goPackage) string {
	programs := s.programs()
	for _, service := range sortedKeys(programs) {
		program := programs[service]
		dir := path.Dir(path.Clean(program))
		if !strings.Contains(program, "/") || path.IsAbs(program) || strings.HasPrefix(dir, "..") || !plainPath.MatchString(dir) || s.has(path.Clean(program)) {
			continue
		}
		if slices.ContainsFunc(binaries, func(g goPackage) bool { return base(g.binary) == path.Base(program) }) {
			return dir
		}
	}
	return ""
}
