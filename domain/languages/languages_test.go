package languages

import (
	"path"
	"slices"
	"strings"
	"testing"

	"miren.dev/runtime/pkg/errs"
)

func TestTableIsComplete(t *testing.T) {
	var shipped []string
	for _, s := range Templates() {
		shipped = append(shipped, s.Name)
	}
	seen := map[string]string{} // name, alias or extension: language
	unique := func(word, lang string) {
		if other := seen[word]; other != "" {
			t.Errorf("%s belongs to %s and %s", word, other, lang)
		}
		seen[word] = lang
	}
	for _, l := range All() {
		if l.Name == "" || l.Title == "" || l.File == "" || len(l.Run) == 0 || len(l.Version) == 0 || len(l.Extensions) == 0 {
			t.Errorf("%s lacks a field: %+v", l.Name, l)
		}
		if !slices.Contains(shipped, l.Template) {
			t.Errorf("%s: no template %s is shipped", l.Name, l.Template)
		}
		if !slices.Contains(l.Extensions, path.Ext(l.File)) {
			t.Errorf("%s: file %s has none of its extensions", l.Name, l.File)
		}
		if len(l.Install) == 0 && l.Note == "" {
			t.Errorf("%s installs no packages and does not say why", l.Name)
		}
		unique(l.Name, l.Name)
		for _, a := range append(slices.Clone(l.Aliases), l.Extensions...) {
			if a != strings.ToLower(a) {
				t.Errorf("%s: %s is not in lower case", l.Name, a)
			}
			unique(a, l.Name)
		}
		all := strings.Join(slices.Concat(l.Compile, l.Run), " ")
		if !strings.Contains(all, "{file}") {
			t.Errorf("%s: no command names {file}", l.Name)
		}
		if (len(l.Compile) > 0) != strings.Contains(strings.Join(l.Run, " "), "{out}") {
			t.Errorf("%s: {out} is run exactly where a command compiles", l.Name)
		}
		for _, command := range [][]string{l.Compile, l.Run, l.Install, l.Version} {
			for _, a := range l.Expand(command, "/d") {
				if strings.Contains(a, "{file}") || strings.Contains(a, "{dir}") || strings.Contains(a, "{out}") {
					t.Errorf("%s: %q has a placeholder left", l.Name, a)
				}
			}
		}
	}
	for _, want := range []string{"python", "javascript", "typescript", "go", "rust", "java", "cpp", "csharp", "shell"} {
		if seen[want] == "" {
			t.Errorf("no language %s", want)
		}
	}
}

func TestLookupKnowsAliases(t *testing.T) {
	for name, want := range map[string]string{
		"py": "python", "js": "javascript", "node": "javascript", "ts": "typescript", "golang": "go", "rs": "rust", "Java": "java",
		"cpp": "cpp", "c++": "cpp", "C++": "cpp", "cs": "csharp", "csharp": "csharp", "C#": "csharp", "sh": "shell", "bash": "shell", " Python ": "python",
	} {
		l, err := Lookup(name)
		if err != nil || l.Name != want {
			t.Errorf("%q is %q, %v, want %s", name, l.Name, err, want)
		}
	}
}

func TestUnknownLanguageNamesTheNearestAndAll(t *testing.T) {
	_, err := Lookup("pyhton")
	if hint := errs.HintOf(err); !errs.Is(err, errs.InvalidArgument) || !strings.Contains(hint, "did you mean python?") || !strings.Contains(hint, "csharp, shell") {
		t.Errorf("%v, hint %q", err, hint)
	}
	_, err = Lookup("brainfuck")
	if hint := errs.HintOf(err); !errs.Is(err, errs.InvalidArgument) || strings.Contains(hint, "mean") || !strings.Contains(hint, "python, ") {
		t.Errorf("%v, hint %q", err, hint)
	}
}

func TestOfFileGoesByExtension(t *testing.T) {
	for file, want := range map[string]string{
		"a.py": "python", "dir.go/b.RS": "rust", "/x/Main.java": "java", "c.cc": "cpp", "d.mjs": "javascript", "e.cs": "csharp", "f.ts": "typescript",
	} {
		l, err := OfFile(file)
		if err != nil || l.Name != want {
			t.Errorf("%s is %q, %v, want %s", file, l.Name, err, want)
		}
	}
	for _, file := range []string{"Makefile", "a.", "", "py"} {
		if l, err := OfFile(file); !errs.Is(err, errs.InvalidArgument) || !strings.Contains(errs.HintOf(err), ".py") {
			t.Errorf("%q is %q, %v, hint %q", file, l.Name, err, errs.HintOf(err))
		}
	}
}

func TestExpandReplacesPlaceholders(t *testing.T) {
	l := Language{File: "main.x"}
	got := l.Expand([]string{"c", "-o", "{out}", "{dir}/a", "-f{file}", "{file"}, "/run/1")
	if want := []string{"c", "-o", "/run/1/main.out", "/run/1/a", "-fmain.x", "{file"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestShippedTemplatesAreComplete(t *testing.T) {
	var names []string
	for _, s := range Templates() {
		names = append(names, s.Name)
		if s.Doc == "" || !strings.HasPrefix(s.Image, "runtime/sandbox:") || s.User == "" || !path.IsAbs(s.WorkDir) ||
			s.CPUMillis <= 0 || s.MemoryMiB <= 0 || s.DiskMiB <= 0 {
			t.Errorf("incomplete: %+v", s)
		}
	}
	want := []string{"base", "code-interpreter-v1", "python", "javascript", "typescript", "go", "rust", "java", "cpp", "csharp", "shell"}
	if !slices.Equal(names, want) {
		t.Errorf("templates %q, want %q", names, want)
	}
}
