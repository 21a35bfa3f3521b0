package stack

import (
	"path"
	"regexp"
	"strconv"
	"strings"

	"miren.dev/runtime/pkg/appconfig"
)

// listener is how programs of a language listen on a port.
type listener struct {
	listens *regexp.Regexp // each match is one port that the program opens
	states  *regexp.Regexp // the port as a number; a submatch is the port
}

// The forms of tutorials.
var (
	nodeListener = listener{
		regexp.MustCompile(`\.listen\(`),
		regexp.MustCompile(`\.listen\(\s*(?:\{\s*port:\s*)?([0-9]{2,5})\b|\b(?:const|let|var)\s+(?i:port)\s*=\s*([0-9]{2,5})\b`),
	}
	goListener = listener{
		regexp.MustCompile(`\bListenAndServe\(|\bnet\.Listen\(|\.(?:Run|Start|Listen)\("`),
		regexp.MustCompile(`\bListenAndServe\(\s*"(?:0\.0\.0\.0)?:([0-9]{2,5})"|\.(?:Run|Start|Listen)\("(?:0\.0\.0\.0)?:([0-9]{2,5})"\)|\bAddr:\s*"(?:0\.0\.0\.0)?:([0-9]{2,5})"`),
	}
	rustListener = listener{
		regexp.MustCompile(`\bbind\(`),
		regexp.MustCompile(`\bbind\(\s*&?"(?:0\.0\.0\.0|\[::\]):([0-9]{2,5})"|\bbind\(\(\s*"0\.0\.0\.0",\s*([0-9]{2,5})|\(\[0, 0, 0, 0\],\s*([0-9]{2,5})\)`),
	}

	// A program with one of these gets its port from its environment.
	readsPort = regexp.MustCompile(`["'` + "`" + `]\w*PORT["'` + "`" + `]|\benv\.\w*PORT\b|\bprocess\.env\[|=\s*process\.env\s*(?:;|\n|$)|\b(?i:port)\s*(?:\|\||\?\?)`)
)

// port is the port of the web service: the only one that the program's main files state, if they do not read PORT, else
// the default.
func (s *source) port(p *Plan, l listener, files ...string) int64 {
	found, where, listens := int64(0), "", 0
	for _, name := range files {
		text, err := s.read(name)
		if err != nil || readsPort.MatchString(text) {
			return appconfig.DefaultPort
		}
		listens += len(l.listens.FindAllString(text, 2))
		for _, m := range l.states.FindAllStringSubmatch(text, -1) {
			n, err := strconv.ParseInt(strings.Join(m[1:], ""), 10, 32)
			if err != nil || n < 1024 || n > 65535 || found != 0 && n != found {
				return appconfig.DefaultPort
			}
			found, where = n, name
		}
	}
	if found == 0 || listens != 1 {
		return appconfig.DefaultPort
	}
	if web := s.cfg.Service(appconfig.DefaultService); found != appconfig.DefaultPort && (web == nil || web.Port == nil) {
		p.because("%s listens on port %d and does not read PORT", where, found)
	}
	return found
}

// nodeEntry is a command that runs one file.
var nodeEntry = regexp.MustCompile(`^(?:exec\s+)?(?:node|tsx|ts-node|bun)\s+(?:--?[\w-]+(?:=\S+)?\s+)*(?:\./)?([\w./-]+)$`)

// entry is the file of the source that the web service runs; none if that is not known.
func (a *nodeApp) entry() []string {
	command := a.serve
	if web := a.s.cfg.Service(appconfig.DefaultService); web != nil && len(web.Command) > 0 {
		command = web.Command[len(web.Command)-1] // of the shell
	}
	m := nodeEntry.FindStringSubmatch(strings.TrimSpace(command))
	if m == nil {
		return nil
	}
	for _, f := range []string{m[1], m[1] + ".js", path.Join(m[1], "index.js")} {
		if a.has(f) {
			return []string{a.file(f)}
		}
	}
	return nil
}

// goEntry are the files of a main package.
func (s *source) goEntry(pkg goPackage) []string {
	var files []string
	for _, f := range s.glob(path.Join(pkg.path, "*.go")) {
		if !strings.HasSuffix(f, "_test.go") {
			files = append(files, f)
		}
	}
	return files
}
