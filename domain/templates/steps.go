package templates

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/pkg/errs"
)

// dockerfile returns the Dockerfile that does what steps say. A step is in the
// form in which E2B's SDK sends it:
//
//	from NAME            an image; first
//	from_template NAME   a template; first. Without either it is "base".
//	run COMMAND [USER]   by /bin/sh
//	copy FROM TO [USER [MODE]]
//	env NAME VALUE ...
//	user NAME
//	workdir PATH
//
// template resolves from_template. The error for a step that cannot be
// translated has its number.
func dockerfile(steps []sandbox.BuildStep, template func(name string) (*sandbox.TemplateVersion, error)) (string, error) {
	if len(steps) > sandbox.MaxSteps {
		return "", errs.New(errs.InvalidArgument, "%d steps, at most %d are possible", len(steps), sandbox.MaxSteps).
			WithHint("join commands of run steps with &&")
	}
	isFrom := func(s sandbox.BuildStep) bool {
		return s.Kind == sandbox.BuildStepKindFrom || s.Kind == sandbox.BuildStepKindFromTemplate
	}
	if len(steps) == 0 || !isFrom(steps[0]) {
		steps = slices.Insert(slices.Clone(steps), 0, sandbox.BuildStep{Kind: sandbox.BuildStepKindFromTemplate, Args: []string{"base"}})
	}
	w := &writer{template: template}
	for i, s := range steps {
		err := w.step(s)
		if err == nil && i > 0 && isFrom(s) {
			err = errs.New(errs.InvalidArgument, "it is the first step or none")
		}
		if err != nil {
			return "", errs.New(errs.ClassOf(err), "step %d (%s): %w", i+1, s.Kind, err).WithHint("%s", errs.HintOf(err))
		}
	}
	if w.b.Len() > sandbox.MaxInstructions {
		return "", errs.New(errs.InvalidArgument, "the steps have %d KiB, at most %d are possible", w.b.Len()>>10, sandbox.MaxInstructions>>10).
			WithHint("put long commands into a file that a copy step copies")
	}
	return w.b.String(), nil
}

// writer writes a Dockerfile.
type writer struct {
	template func(string) (*sandbox.TemplateVersion, error)
	b        strings.Builder
	user     string // of the last user step
}

// arguments are the least and the most arguments of each step, -1: any number.
var arguments = map[sandbox.BuildStepKind][2]int{
	sandbox.BuildStepKindFrom: {1, 1}, sandbox.BuildStepKindFromTemplate: {1, 1}, sandbox.BuildStepKindRun: {1, 2},
	sandbox.BuildStepKindCopy: {2, 4}, sandbox.BuildStepKindEnv: {2, -1}, sandbox.BuildStepKindUser: {1, 1}, sandbox.BuildStepKindWorkdir: {1, 1},
}

var (
	envName  = regexp.MustCompile(sandbox.EnvNamePattern)
	fileMode = regexp.MustCompile(`^[0-7]{3,4}$`)
)

func (w *writer) step(s sandbox.BuildStep) error {
	n, known := arguments[s.Kind]
	if !known {
		return errs.New(errs.InvalidArgument, "such a step does not exist")
	}
	if len(s.Args) < n[0] || n[1] >= 0 && len(s.Args) > n[1] {
		return errs.New(errs.InvalidArgument, "it has %d arguments", len(s.Args)).WithHint("a copy step has the path in the source and the path in the image")
	}
	for _, a := range s.Args {
		if strings.ContainsRune(a, 0) || !utf8.ValidString(a) {
			return errs.New(errs.InvalidArgument, "%q holds a NUL or is not UTF-8", a)
		}
	}
	switch s.Kind {
	case sandbox.BuildStepKindRun:
		return w.run(s.Args)
	case sandbox.BuildStepKindEnv:
		return w.env(s.Args)
	}
	for i, a := range s.Args {
		if err := plain(a); err != nil && (a != "" || i < 2) {
			return err
		}
	}
	if s.Kind == sandbox.BuildStepKindFrom || s.Kind == sandbox.BuildStepKindUser {
		if err := word("name", s.Args[0]); err != nil {
			return err
		}
	}
	switch s.Kind {
	case sandbox.BuildStepKindFrom:
		w.printf("FROM %s\n", s.Args[0])
	case sandbox.BuildStepKindFromTemplate:
		return w.from(s.Args[0])
	case sandbox.BuildStepKindCopy:
		return w.copy(s.Args)
	case sandbox.BuildStepKindUser:
		w.user = s.Args[0]
		w.printf("USER %s\n", w.user)
	case sandbox.BuildStepKindWorkdir:
		w.printf("WORKDIR %s\n", s.Args[0])
	}
	return nil
}

// plain refuses an argument that would mean something else in a Dockerfile.
func plain(a string) error {
	if a == "" || strings.ContainsAny(a, "\"'\\$`") || strings.ContainsFunc(a, unicode.IsControl) {
		return errs.New(errs.InvalidArgument, "%q has characters other than plain ones, or none", a).WithHint("quotes, \\, $ and line breaks are possible in run and env only")
	}
	return nil
}

// wordPattern is that of the name of an image or a user. BuildKit's options
// hold ASCII only.
var wordPattern = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.:/@+-]*$`)

// word refuses an argument that is not the name of an image or a user; what is
// for the message.
func word(what, a string) error {
	if !wordPattern.MatchString(a) {
		return errs.New(errs.InvalidArgument, "%q is not a %s", a, what)
	}
	return nil
}

func (w *writer) printf(format string, args ...any) { fmt.Fprintf(&w.b, format, args...) }

// quoted returns arguments in the form that no shell interprets.
func quoted(args []string) string {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(args) // strings cannot fail
	return strings.TrimSpace(b.String())
}

func (w *writer) from(of string) error {
	v, err := w.template(of)
	if err != nil {
		return err
	}
	image := v.Spec.Base
	if image == "" {
		image = v.Status.Image
	}
	if image == "" {
		return errs.New(errs.FailedPrecondition, "version %d of template %s has no image: it is %s", v.Spec.Number, of, v.Status.Phase)
	}
	w.printf("FROM %s\n", image)
	if v.Spec.User != "" {
		w.user = v.Spec.User
		w.printf("USER %s\n", v.Spec.User)
	}
	if v.Spec.Workdir != "" {
		w.printf("WORKDIR %s\n", v.Spec.Workdir)
	}
	return nil
}

func (w *writer) run(args []string) error {
	command := "RUN " + quoted([]string{"/bin/sh", "-c", args[0]}) + "\n"
	if len(args) == 1 || args[1] == w.user {
		w.printf("%s", command)
		return nil
	}
	if err := word("user", args[1]); err != nil {
		return err
	}
	back := w.user
	if back == "" {
		return errs.New(errs.InvalidArgument, "a run step with a user of its own needs a user step before, which says who the next steps run as")
	}
	w.printf("USER %s\n%sUSER %s\n", args[1], command, back)
	return nil
}

func (w *writer) copy(args []string) error {
	options := ""
	if len(args) > 2 && args[2] != "" {
		if err := word("user", args[2]); err != nil {
			return err
		}
		options += " --chown=" + args[2]
	}
	if len(args) > 3 && args[3] != "" {
		if !fileMode.MatchString(args[3]) {
			return errs.New(errs.InvalidArgument, "%q is not a mode such as 644", args[3])
		}
		options += " --chmod=" + args[3]
	}
	w.printf("COPY%s %s\n", options, quoted(args[:2]))
	return nil
}

func (w *writer) env(args []string) error {
	if len(args)%2 != 0 {
		return errs.New(errs.InvalidArgument, "%d arguments are not names and values", len(args))
	}
	for pair := range slices.Chunk(args, 2) {
		if !envName.MatchString(pair[0]) {
			return errs.New(errs.InvalidArgument, "%q is not the name of a variable", pair[0])
		}
		if strings.ContainsFunc(pair[1], unicode.IsControl) {
			return errs.New(errs.InvalidArgument, "the value of %s has a line break or another control character", pair[0])
		}
		w.printf("ENV %s=\"%s\"\n", pair[0], envValue.Replace(pair[1]))
	}
	return nil
}

// envValue escapes what is special in a quoted value of a Dockerfile.
var envValue = strings.NewReplacer(`\`, `\\`, `"`, `\"`, `$`, `\$`)
