package mock

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/sandboxfs"
)

// Said is what a program prints for which no answer is stated.
const Said = "mock: nothing was executed\n"

// maxCode bounds the files of a program that are read to find its answer, in bytes.
const maxCode = 8 << 20

// Answers say what programs print and how they end, in place of executing them:
// the first answer of the list that matches, else Default.
type Answers struct {
	Answers []Answer `yaml:"answers"`
	Default Answer   `yaml:"default"`
}

// Answer is what one program does. Its texts may have placeholders: {1} to {9} for
// what the groups of the expressions matched, those of Command first, {command} for
// the command line, {code} for the code and {input} for the standard input, which is
// read to its end.
type Answer struct {
	// Command is a regular expression that the command line has: its words, joined by
	// spaces, without the `sh -c` of a shell.
	Command string `yaml:"command"`
	// Code is a regular expression that the code has: that of an execution, or files
	// of the sandbox that the command line names.
	Code     string            `yaml:"code"`
	Delay    time.Duration     `yaml:"delay"` // until it prints
	Stdout   string            `yaml:"stdout"`
	Stderr   string            `yaml:"stderr"`
	ExitCode int               `yaml:"exit_code"` // 0 to 255
	Files    map[string]string `yaml:"files"`     // that it writes, by path
	Error    *AnswerError      `yaml:"error"`     // it is not started

	command, code *regexp.Regexp
}

// AnswerError refuses the start of a program.
type AnswerError struct {
	Class   string `yaml:"class"` // of pkg/errs: "unavailable", "resource_exhausted", ...
	Message string `yaml:"message"`
	// ExitCode, if not 0, says that the command cannot be run, as a shell does: 127 it
	// does not exist, 126 it is no program.
	ExitCode int `yaml:"exit_code"`
}

// ParseAnswers reads answers in YAML. InvalidArgument, with the place, if they are
// not valid.
func ParseAnswers(text []byte) (*Answers, error) {
	a := &Answers{}
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	if err := d.Decode(a); err != nil && !errors.Is(err, io.EOF) {
		return nil, errs.New(errs.InvalidArgument, "%w", err)
	}
	for n := range a.Answers {
		x := &a.Answers[n]
		if x.Command == "" && x.Code == "" {
			return nil, errs.New(errs.InvalidArgument, "answer %d has neither command nor code", n+1).WithHint("what answers everything else is `default`")
		}
		if err := x.check(); err != nil {
			return nil, errs.Wrap(err, "answer %d", n+1)
		}
	}
	if a.Default.Command != "" || a.Default.Code != "" {
		return nil, errs.New(errs.InvalidArgument, "default: command and code belong to an answer of the list")
	}
	return a, errs.Wrap(a.Default.check(), "default")
}

func (x *Answer) check() (err error) {
	if x.command, err = regexp.Compile(x.Command); err != nil {
		return errs.New(errs.InvalidArgument, "command: %w", err)
	}
	if x.code, err = regexp.Compile(x.Code); err != nil {
		return errs.New(errs.InvalidArgument, "code: %w", err)
	}
	if x.ExitCode < 0 || x.ExitCode > 255 || x.Delay < 0 {
		return errs.New(errs.InvalidArgument, "exit_code is 0 to 255 and delay is not negative")
	}
	if e := x.Error; e != nil && e.ExitCode == 0 && !slices.Contains(classes, errs.Class(e.Class)) {
		return errs.New(errs.InvalidArgument, "error: there is no class %q", e.Class).WithHint("classes are %v", classes)
	}
	return nil
}

// classes are those that a driver may answer with.
var classes = []errs.Class{
	errs.InvalidArgument, errs.NotFound, errs.FailedPrecondition, errs.PermissionDenied, errs.ResourceExhausted, errs.Unavailable, errs.Unimplemented, errs.Internal,
}

// asked is what an answer is found for.
type asked struct{ command, code string }

// find returns the answer, with what its groups matched; whether it is stated.
func (a *Answers) find(q asked) (x *Answer, groups []string, stated bool) {
	for n := range a.Answers {
		x := &a.Answers[n]
		inCommand, inCode := x.command.FindStringSubmatch(q.command), x.code.FindStringSubmatch(q.code)
		if inCommand != nil && inCode != nil && (x.Code == "" || q.code != "") {
			return x, slices.Concat(inCommand[1:], inCode[1:]), true
		}
	}
	return &a.Default, nil, false
}

// fill returns a text of an answer without placeholders.
func fill(text string, q asked, groups []string, input func() string) string {
	pairs := []string{"{command}", q.command, "{code}", q.code}
	for n, g := range groups {
		pairs = append(pairs, "{"+strconv.Itoa(n+1)+"}", g)
	}
	if strings.Contains(text, "{input}") {
		pairs = append(pairs, "{input}", input())
	}
	return strings.NewReplacer(pairs...).Replace(text)
}

// err returns the error that refuses the start.
func (e *AnswerError) err(command string) error {
	if e.ExitCode != 0 {
		return CannotRun(command, e.ExitCode)
	}
	text := e.Message
	if text == "" {
		text = "the answers of the mock say so"
	}
	return errs.New(errs.Class(e.Class), "%s", text)
}

// Program answers for a process: it is a Config.Program. A main process without a
// stated answer runs until it is ended.
func (a *Answers) Program(g *Guest) (Program, error) {
	q := asked{command: commandLine(g.Args)}
	q.code = g.code()
	x, groups, stated := a.find(q)
	if x.Error != nil {
		return nil, x.Error.err(q.command)
	}
	return func(g *Guest) int {
		if x.Delay > 0 && !g.Wait(x.Delay) {
			return g.Dies()
		}
		input := func() string {
			b, err := io.ReadAll(g.Stdin)
			if err != nil {
				return "" // the process was killed, which its exit code says
			}
			return string(b)
		}
		for _, p := range slices.Sorted(maps.Keys(x.Files)) {
			if err := put(g.Files(), p, fill(x.Files[p], q, groups, input)); err != nil {
				fmt.Fprintf(g.Stderr, "mock: %v\n", err)
				return 1
			}
		}
		_, err := io.WriteString(g.Stdout, fill(x.text(stated), q, groups, input))
		if err == nil {
			_, err = io.WriteString(g.Stderr, fill(x.Stderr, q, groups, input))
		}
		switch {
		case err != nil:
			return g.Dies() // the pipe is closed
		case g.PID() == 0 && !stated:
			return idle(g)
		}
		return x.ExitCode
	}, nil
}

// text is what an answer prints on the standard output.
func (x *Answer) text(stated bool) string {
	if !stated && x.Stdout == "" && x.Stderr == "" && x.ExitCode == 0 {
		return Said
	}
	return x.Stdout
}

// put writes a file.
func put(to sandboxfs.FS, p, text string) error {
	w, err := to.Write(context.Background(), p, sandboxfs.WriteOptions{Parents: true})
	if err != nil {
		return err
	}
	defer w.Close()
	if _, err = io.WriteString(w, text); err == nil {
		_, err = w.Commit(context.Background())
	}
	return err
}

// commandLine returns the words of a command, without the shell that reads them.
func commandLine(argv []string) string {
	if len(argv) > 2 && slices.Contains([]string{"sh", "bash"}, path.Base(argv[0])) {
		for n, flag := range argv[1:] {
			if !strings.HasPrefix(flag, "-") {
				break
			}
			if strings.HasSuffix(flag, "c") {
				return strings.Join(argv[n+2:], " ")
			}
		}
	}
	return strings.Join(argv, " ")
}

// code returns the files of the sandbox that the command line names.
func (g *Guest) code() string {
	if g.p.box.files == "" {
		return ""
	}
	var code strings.Builder
	f := g.Files()
	for _, word := range strings.FieldsFunc(strings.Join(g.Args, " "), func(r rune) bool { return strings.ContainsRune(" \t\n'\";&|<>()", r) }) {
		i, err := f.Stat(context.Background(), word)
		if err != nil || !i.Mode.IsRegular() || i.Size > maxCode-int64(code.Len()) {
			continue
		}
		r, err := f.Read(context.Background(), word, 0, 0)
		if err != nil {
			continue // it was removed meanwhile
		}
		_, _ = io.Copy(&code, io.LimitReader(r, maxCode)) // what was read until an error is its code
		_ = r.Close()
	}
	return code.String()
}
