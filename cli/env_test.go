package cli_test

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/schema"
)

// TestSecretsAreNotInErrors: whatever is given for a secret, in whatever wrong way, no error repeats it.
func TestSecretsAreNotInErrors(t *testing.T) {
	newFake(t).shop()
	const secret = "hunter2verysecret"
	set := []string{"app", "env", "set", "-a", "shop", "--no-deploy", "--secret"}
	for name, c := range map[string]struct {
		in   string
		args []string
		want string
	}{
		"value alone":        {"", append(set, secret), "secret 1 of the command"},
		"value before =":     {"", append(set, "A=b", secret+"/x=="), "secret 2 of the command"},
		"no name":            {"", append(set, "="+secret), "secret 1 of the command"},
		"line without =":     {"A=1\n# comment\n\n" + secret + "\nB=2\n", append(set, "--stdin"), "line 4"},
		"open quotes":        {"A=1\nB=\"" + secret + "\n", append(set, "--stdin"), "line 2"},
		"key of two lines":   {"A=\"x\ny\"\nB=1\n" + secret + "+/\n", append(set, "--stdin"), "line 4"},
		"name with dots":     {secret + ".x=1\n", append(set, "--stdin"), "cannot be the name"},
		"reference":          {"A=" + secret + "$XYZ\n", append(set, "--stdin"), "single quotes"},
		"escaped last quote": {"A=\"" + secret + "\\\"\"\n", append(set, "--stdin"), "single quotes"},
		"import":             {secret + "\n", []string{"env", "import", "-", "-a", "shop", "--secret"}, "line 1"},
		"import, not secret": {secret + "\n", []string{"env", "import", "-", "-a", "shop"}, "line 1"},
		"sandbox":            {"", []string{"sandbox", "run", "--image", "debian", "--secret", secret, "--", "true"}, "secret 1 of the command"},
	} {
		t.Run(name, func(t *testing.T) {
			r := run(t, false, c.in, c.args...)
			if r.code != exit.Usage || !strings.Contains(r.err, c.want) {
				t.Errorf("code %d, no %q in %s", r.code, c.want, r.err)
			}
			if strings.Contains(r.out+r.err, "hunter2") {
				t.Errorf("%s", r.out+r.err)
			}
		})
	}
}

// TestDotenv: import reads what other tools write, and what export prints.
func TestDotenv(t *testing.T) {
	f := newFake(t)
	a := f.shop()
	file := filepath.Join(t.TempDir(), ".env")
	text := "# production\nexport A=1\nB='$literal \"x\"'\nC=\"two\\nlines\"\nKEY=\"-----BEGIN-----\nabc\n-----END-----\"\nHOST=db # the database\nURL=\"http://$HOST/\"\nEMPTY=\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	contains(t, ok(t, "env", "import", file, "-a", "shop", "--no-deploy"), "next deployment")
	want := map[string]string{"A": "1", "B": `$literal "x"`, "C": "two\nlines", "KEY": "-----BEGIN-----\nabc\n-----END-----", "HOST": "db", "URL": "http://db/", "EMPTY": ""}
	if got := f.envs[0]; !maps.Equal(got.Set, want) || got.SetSecret != nil || got.Deploy {
		t.Errorf("%+v", got)
	}
	ok(t, "env", "import", file, "-a", "shop", "--secret", "--no-deploy")
	if got := f.envs[1]; !maps.Equal(got.SetSecret, want) || got.Set != nil {
		t.Errorf("%+v", got)
	}
	for _, in := range []string{"no-such-file", filepath.Dir(file)} {
		if r := run(t, false, "", "env", "import", in, "-a", "shop"); r.code == 0 {
			t.Errorf("import of %s: %+v", in, r)
		}
	}
	if r := run(t, false, "# nothing\n", "env", "import", "-", "-a", "shop"); r.code != exit.Usage || !strings.Contains(r.err, "no variables") {
		t.Errorf("%+v", r)
	}

	want["NUMBER"], want["ODD"], want["PATHS"] = "007", "a\\nb\t\"q\" 'x' #y $Z `w` !\r\n", `C:\new\$x`
	_, err := entity.ModifySpec(t.Context(), f.store, a.ID, func(a *app.App) error {
		a.Spec.Env, a.Spec.Secrets = want, map[string]schema.Secret{}
		sealed, err := schema.NewSealer(filepath.Join(t.TempDir(), "key")).Seal("hidden")
		a.Spec.Secrets["TOKEN"] = sealed
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	out := ok(t, "env", "export", "shop")
	contains(t, out, "# TOKEN is a secret")
	if r := run(t, false, out, "env", "import", "-", "-a", "shop", "--no-deploy"); r.code != 0 || !maps.Equal(f.envs[2].Set, want) {
		t.Errorf("%s\nis read as %q\nwant %q\n%s", out, f.envs[2].Set, want, r.err)
	}
	contains(t, ok(t, "env", "export", "shop", "--json"), `"TOKEN"`, `"NUMBER": "007"`)
}
