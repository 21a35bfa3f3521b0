package source

import (
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"miren.dev/runtime/testsupport/need"
)

// tree writes files; a path that ends in / is a folder, "a -> b" a link.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	write(t, dir, files)
	return dir
}

func write(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		if link, target, ok := strings.Cut(name, " -> "); ok {
			if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, link)), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(target, filepath.Join(dir, link)); err != nil {
				t.Fatal(err)
			}
			continue
		}
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(name, "/") {
			if err := os.MkdirAll(p, 0o755); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func walk(t *testing.T, dir string, opt WalkOptions) *Tree {
	t.Helper()
	tr, err := Walk(t.Context(), dir, opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tr.Close() })
	return tr
}

func paths(m *Manifest) []string {
	var out []string
	for _, f := range m.Files {
		out = append(out, f.Path)
	}
	return out
}

func TestIgnoreRules(t *testing.T) {
	// Each file has the text "x" but for the ignore files.
	tests := []struct {
		name   string
		rules  map[string]string // ignore files
		files  string
		expect string // without the ignore files
	}{
		{"none", nil, "a b/c", "a b/c"},
		{"name at any depth", map[string]string{".gitignore": "*.log\n"}, "a.log b/a.log b/a.txt", "b/a.txt"},
		{"anchored", map[string]string{".gitignore": "/build\n"}, "build/x src/build/x", "src/build/x"},
		{"anchored by a slash inside", map[string]string{".gitignore": "doc/*.txt\n"}, "doc/a.txt doc/b/a.txt x/doc/a.txt", "doc/b/a.txt x/doc/a.txt"},
		{"folders only", map[string]string{".gitignore": "out/\n"}, "out/x a/out/y b/out", "b/out"},
		{"negation", map[string]string{".gitignore": "*.log\n!keep.log\n"}, "a.log keep.log b/keep.log", "b/keep.log keep.log"},
		{"negation cannot enter an ignored folder", map[string]string{".gitignore": "dir/\n!dir/keep\n"}, "dir/keep a", "a"},
		{"negation through contents", map[string]string{".gitignore": "dir/*\n!dir/keep\n"}, "dir/keep dir/other a", "a dir/keep"},
		{"last rule wins", map[string]string{".gitignore": "!a\na\n"}, "a b", "b"},
		{"nested file", map[string]string{"sub/.gitignore": "x\n"}, "x sub/x sub/deep/x sub/y", "sub/y x"},
		{"nested file overrules", map[string]string{".gitignore": "*.txt\n", "sub/.gitignore": "!*.txt\n"}, "a.txt sub/a.txt", "sub/a.txt"},
		{"nested anchored", map[string]string{"sub/.gitignore": "/x\n"}, "sub/x sub/deep/x", "sub/deep/x"},
		{"double star first", map[string]string{".gitignore": "**/tmp\n"}, "tmp/a b/tmp/a b/c", "b/c"},
		{"double star last", map[string]string{".gitignore": "logs/**\n"}, "logs/a logs/b/c a/logs/x", "a/logs/x"},
		{"double star inside", map[string]string{".gitignore": "a/**/z\n"}, "a/z a/b/z a/b/c/z b/z", "b/z"},
		{"question mark", map[string]string{".gitignore": "a?c\n"}, "abc ac a/c", "a/c ac"},
		{"class", map[string]string{".gitignore": "[a-c].txt\n[!x].md\n"}, "a.txt d.txt a.md x.md", "d.txt x.md"},
		{"escapes", map[string]string{".gitignore": "\\#x\n\\!y\n"}, "#x !y z", "z"},
		{"comments and spaces", map[string]string{".gitignore": "# a\na   \n\n"}, "a b", "b"},
		{"carriage returns", map[string]string{".gitignore": "a\r\nb\r\n"}, "a b c", "c"},
		{"star does not cross", map[string]string{".gitignore": "/a/*.c\n"}, "a/x.c a/b/x.c", "a/b/x.c"},
		{"not a class", map[string]string{".gitignore": "a[\n"}, "a[ b", "b"},
		{"version control", nil, ".git/config a/.git b .hg/x", "b"},
		{"defaults", nil, "node_modules/x a/node_modules/x __pycache__/x .venv/x a.pyc b", "b"},
		{"a default taken back", map[string]string{".gitignore": "!node_modules/\n"}, "node_modules/x", "node_modules/x"},
		{"state but not configuration", map[string]string{".gitignore": ".runtime\n"}, ".runtime/app.toml .runtime/state/x a", ".runtime/app.toml a"},
		{"dockerignore", map[string]string{".dockerignore": "*.md\ndir\n!dir/keep\n"}, "a.md b/a.md dir/x dir/keep", "b/a.md dir/keep"},
		{"dockerignore everything but", map[string]string{".dockerignore": "*\n!src\n"}, "a src/x src/y/z", "src/x src/y/z"},
		{"dockerignore only at the root", map[string]string{"sub/.dockerignore": "x\n"}, "sub/x", "sub/x"},
		{"what builds is needed", map[string]string{".dockerignore": "Dockerfile\n"}, "Dockerfile a", "Dockerfile a"},
		{"both", map[string]string{".gitignore": "a\n", ".dockerignore": "b\n"}, "a b c", "c"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			files := map[string]string{}
			for _, f := range strings.Fields(tt.files) {
				files[f] = "x"
			}
			for f, text := range tt.rules {
				files[f] = text
			}
			got := slices.DeleteFunc(paths(walk(t, tree(t, files), WalkOptions{}).Manifest), func(p string) bool {
				return strings.HasSuffix(p, "ignore")
			})
			if want := strings.Fields(tt.expect); !slices.Equal(got, want) {
				t.Errorf("got %q, want %q", got, want)
			}
		})
	}
}

func TestIgnoreRulesAboveTheFolder(t *testing.T) {
	dir := tree(t, map[string]string{
		".git/info/exclude": "secret\n", ".gitignore": "*.log\n/app/local\n", "app/.gitignore": "!keep.log\n",
		"app/a.log": "", "app/keep.log": "", "app/local": "", "app/sub/local": "", "app/secret": "", "app/main.go": "",
	})
	got := paths(walk(t, filepath.Join(dir, "app"), WalkOptions{}).Manifest)
	if want := []string{".gitignore", "keep.log", "main.go", "sub/local"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func FuzzGitignore(f *testing.F) {
	for _, s := range []string{"*.log", "!/a/**/b/", "[!a-z]?", "a[", "\\", "[[:alpha:]]x", "[]]", "**"} {
		f.Add(s, "a/b.log")
	}
	f.Fuzz(func(t *testing.T, rules, p string) {
		m := matcher{git: parseGitignore("", []byte(rules))}
		m.gitIgnored(p, true)
		m.gitIgnored(p, false)
	})
}

// TestIgnoreRulesLikeGit compares with git itself, on names that our own defaults do not touch.
func TestIgnoreRulesLikeGit(t *testing.T) {
	need.Tools(t, "git")
	patterns := []string{"a", "/a", "a/", "*.x", "!b.x", "b/*", "!b/a", "**/c", "c/**", "a/**/c", "a*c", "[ab].x", "[!a].x", "?.x", "/b/a.x", "!/b/", "b/**/", "\\a", "*", "!*/", "a**c", "**", "!**/a.x", "[a-b]/c", "[]a].x", "[^a].x"}
	names := []string{"a", "b.x", "a.x", "c/a", "b/a", "b/a.x", "b/c/a", "a.d/c", "b/a.d/b.x", "c.x", "axc", "b/].x"}
	random := rand.New(rand.NewPCG(1, 2))
	rounds := 40
	for range rounds {
		var root, sub []string
		for range 1 + random.IntN(4) {
			root = append(root, patterns[random.IntN(len(patterns))])
		}
		for range random.IntN(3) {
			sub = append(sub, patterns[random.IntN(len(patterns))])
		}
		files := map[string]string{".gitignore": strings.Join(root, "\n"), "b/.gitignore": strings.Join(sub, "\n")}
		for _, n := range names {
			files[n] = ""
		}
		dir := tree(t, files)
		if out, err := exec.Command("git", "-C", dir, "init", "-q").CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		cmd := exec.Command("git", "-C", dir, "ls-files", "-z", "--others", "--exclude-standard")
		cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null")
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		want := strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
		slices.Sort(want)
		if len(out) == 0 {
			want = nil
		}
		if got := paths(walk(t, dir, WalkOptions{}).Manifest); !slices.Equal(got, want) {
			t.Errorf("rules %q, in b %q:\ngot  %q\nwant %q", root, sub, got, want)
		}
	}
}
