// Package languages has the languages of submitted code and the templates that
// every installation has. Both are tables, languages.yml and templates.yml; no
// code treats a language specially.
package languages

import (
	"bytes"
	_ "embed"
	"path"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/suggest"
)

// Language says how code of one language is run. Commands are argument vectors
// with the placeholders that Expand replaces. The code is written as File to a
// directory of its own, in which all commands run.
type Language struct {
	Name       string            `yaml:"name"`       // "cpp"; also in ids and URLs
	Title      string            `yaml:"title"`      // "C++"
	Aliases    []string          `yaml:"aliases"`    // other names, in lower case
	Extensions []string          `yaml:"extensions"` // of file names, with the dot
	Template   string            `yaml:"template"`   // name of a shipped template that has the language
	File       string            `yaml:"file"`       // "main.cpp"
	Compile    []string          `yaml:"compile"`    // empty: nothing to compile
	Run        []string          `yaml:"run"`        // arguments of the program are appended
	Install    []string          `yaml:"install"`    // runs before Compile, names of packages appended; empty: packages cannot be installed
	Version    []string          `yaml:"version"`    // prints the version, in its first line
	Env        map[string]string `yaml:"env"`        // variables of all commands
	Note       string            `yaml:"note"`       // what users should know; may be empty
}

// Template is a template that every installation has.
type Template struct {
	Name      string   `yaml:"name"`
	Doc       string   `yaml:"doc"`        // one line for lists
	Image     string   `yaml:"image"`      // reference that components/baseimage understands
	User      string   `yaml:"user"`       // whom processes run as
	WorkDir   string   `yaml:"workdir"`    // where they start
	Start     []string `yaml:"start"`      // command that runs in every sandbox from its start on; empty: none
	Ready     *Ready   `yaml:"ready"`      // check that passes when the start command is ready; nil: as soon as it was started
	CPUMillis int64    `yaml:"cpu_millis"` // thousandths of a processor
	MemoryMiB int64    `yaml:"memory_mib"`
	DiskMiB   int64    `yaml:"disk_mib"` // a sandbox may write so much
}

// Ready is a check of one kind: a command, an HTTP path of a port, or the port.
type Ready struct {
	Port    int64         `yaml:"port"`
	Path    string        `yaml:"path"`    // answers GET with a status below 400
	Command []string      `yaml:"command"` // exits with 0
	Timeout time.Duration `yaml:"timeout"` // longest time to the first success; 0: 60 s
}

//go:embed languages.yml
var languagesYAML []byte

//go:embed templates.yml
var templatesYAML []byte

var (
	languages = parse[Language](languagesYAML)
	templates = withDefaults(parse[Template](templatesYAML))
)

// parse reads a table of the program itself; a mistake in it is a bug.
func parse[T any](b []byte) []T {
	var list []T
	dec := yaml.NewDecoder(bytes.NewReader(b))
	dec.KnownFields(true)
	if err := dec.Decode(&list); err != nil {
		panic("domain/languages: " + err.Error())
	}
	return list
}

func withDefaults(list []Template) []Template {
	for i := range list {
		t := &list[i]
		t.User, t.WorkDir = "user", "/home/user"
		if t.CPUMillis == 0 {
			t.CPUMillis = 1000
		}
		if t.MemoryMiB == 0 {
			t.MemoryMiB = 512
		}
		if t.DiskMiB == 0 {
			t.DiskMiB = 4096
		}
	}
	return list
}

// All returns the languages in the order of the table. The caller does not
// change them.
func All() []Language { return slices.Clone(languages) }

// Templates returns the shipped templates, the default one first. The caller
// does not change them.
func Templates() []Template { return slices.Clone(templates) }

// Lookup returns the language with a name or alias, in upper or lower case.
// InvalidArgument, naming the nearest and listing all, if there is none.
func Lookup(name string) (Language, error) {
	want := strings.ToLower(strings.TrimSpace(name))
	var names, all []string
	for _, l := range languages {
		if want == l.Name || slices.Contains(l.Aliases, want) {
			return l, nil
		}
		names = append(names, l.Name)
		all = append(append(all, l.Name), l.Aliases...)
	}
	err := errs.New(errs.InvalidArgument, "language %q is not known", name)
	list := "the languages are " + strings.Join(names, ", ")
	if near := suggest.Nearest(want, all); near != "" {
		return Language{}, err.WithHint("did you mean %s? %s", near, list)
	}
	return Language{}, err.WithHint("%s", list)
}

// OfFile returns the language of a file by the extension of its name.
// InvalidArgument, listing the extensions, if no language has it.
func OfFile(file string) (Language, error) {
	ext := strings.ToLower(path.Ext(file))
	var known []string
	for _, l := range languages {
		if slices.Contains(l.Extensions, ext) {
			return l, nil
		}
		known = append(known, l.Extensions...)
	}
	return Language{}, errs.New(errs.InvalidArgument, "the name of file %q tells no language", file).
		WithHint("name the language, or use one of the extensions %s", strings.Join(known, " "))
}

// Expand replaces the placeholders of a command: {file} by l.File, {dir} by
// dir, the path of the code's directory in the sandbox, and {out} by the path
// of the compiled program in it.
func (l Language) Expand(command []string, dir string) []string {
	r := strings.NewReplacer("{file}", l.File, "{dir}", dir, "{out}", path.Join(dir, "main.out"))
	out := make([]string, len(command))
	for i, a := range command {
		out[i] = r.Replace(a)
	}
	return out
}

// Command returns the command that compiles the program in the directory dir,
// where the language has a compiler, and runs it with arguments. Its exit code is
// the compiler's if that fails.
func (l Language) Command(dir string, args []string) []string {
	run := append(l.Expand(l.Run, dir), args...)
	if len(l.Compile) == 0 {
		return run
	}
	return append([]string{"/bin/sh", "-c", quote(l.Expand(l.Compile, dir)) + ` && exec "$@"`, "sh"}, run...)
}

// quote returns a command line for a shell.
func quote(argv []string) string {
	words := make([]string, len(argv))
	for i, a := range argv {
		words[i] = "'" + strings.ReplaceAll(a, "'", `'\''`) + "'"
	}
	return strings.Join(words, " ")
}
