package e2b

import (
	"cmp"
	"context"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/pkg/errs"
)

// buildStart says how a template is built.
type buildStart struct {
	FromImage         string         `json:"fromImage"`
	FromTemplate      string         `json:"fromTemplate"`
	FromImageRegistry map[string]any `json:"fromImageRegistry"`
	Force             bool           `json:"force"`
	Steps             []templateStep `json:"steps"`
	StartCmd          string         `json:"startCmd"`
	ReadyCmd          string         `json:"readyCmd"`
}

type templateStep struct {
	Type      string   `json:"type"`
	Args      []string `json:"args"`
	FilesHash string   `json:"filesHash"`
	Force     bool     `json:"force"`
}

// translated is a build as RPC describes it.
type translated struct {
	steps []sandbox.BuildStep
	files []string // hashes of the uploads that it needs
	user  string   // of its sandboxes
	start []string
	ready *sandbox.TemplateReady
	anew  bool
}

// defaultUser is the user of E2B's templates.
const defaultUser = "user"

// withUser makes E2B's user in an image that has none.
const withUser = "id user >/dev/null 2>&1 || useradd --create-home --shell /bin/bash user"

// ownImages are images of E2B, and the templates that stand for them.
var ownImages = map[string]string{"e2bdev/base": "base", "e2bdev/code-interpreter": "code-interpreter-v1"}

var filesHash = regexp.MustCompile(`^[0-9a-f]{64}$`)

// translate returns the build. The domain checks the arguments of steps.
func (q *buildStart) translate(ctx context.Context, c *caller) (*translated, error) {
	t := &translated{anew: q.Force}
	if err := t.from(ctx, c, q); err != nil {
		return nil, err
	}
	for i, s := range q.Steps {
		if err := t.add(&s); err != nil {
			return nil, errs.New(errs.ClassOf(err), "step %d (%s): %w", i+1, s.Type, err)
		}
	}
	if q.StartCmd != "" {
		t.start = bash(q.StartCmd)
	} else if q.ReadyCmd != "" {
		t.start = []string{"/bin/sh", "-c", "exec sleep infinity"} // a check needs a command to check
	}
	if q.ReadyCmd != "" {
		t.ready = readyOf(q.ReadyCmd)
	}
	return t, nil
}

// bash returns the command line for a command, as E2B runs it.
func bash(command string) []string { return []string{"/bin/bash", "-l", "-c", command} }

func (t *translated) step(kind sandbox.BuildStepKind, args ...string) {
	t.steps = append(t.steps, sandbox.BuildStep{Kind: kind, Args: args})
}

// from adds what the template begins from.
func (t *translated) from(ctx context.Context, c *caller, q *buildStart) error {
	template := q.FromTemplate
	switch {
	case q.FromImageRegistry != nil:
		return missing("images of a registry with a password (fromImageRegistry)")
	case q.FromImage != "" && template != "":
		return errs.New(errs.InvalidArgument, "a template begins from an image or from a template, not from both")
	case q.FromImage != "":
		name := strings.TrimPrefix(strings.TrimPrefix(q.FromImage, "docker.io/"), "library/")
		repository, _, _ := strings.Cut(name, ":")
		if template = ownImages[repository]; template != "" {
			break
		}
		t.step(sandbox.BuildStepKindFrom, name)
		t.step(sandbox.BuildStepKindUser, "root")
		t.step(sandbox.BuildStepKindRun, withUser)
		t.step(sandbox.BuildStepKindUser, defaultUser)
		t.step(sandbox.BuildStepKindWorkdir, "/home/"+defaultUser)
		t.user = defaultUser
		return nil
	}
	template = templateName(cmp.Or(template, "base"))
	view, err := c.template(ctx, template)
	if err != nil {
		return err
	}
	if view.selected != nil {
		t.user = view.selected.Spec.User
	}
	t.step(sandbox.BuildStepKindFromTemplate, template)
	return nil
}

// add adds a step.
func (t *translated) add(s *templateStep) error {
	t.anew = t.anew || s.Force
	args := slices.Clone(s.Args)
	for len(args) > 1 && args[len(args)-1] == "" && s.Type != "ENV" { // what was left out
		args = args[:len(args)-1]
	}
	if len(args) == 0 {
		return errs.New(errs.InvalidArgument, "it has no arguments")
	}
	switch s.Type {
	case "RUN":
		args[0] = "exec /bin/bash -c '" + strings.ReplaceAll(args[0], "'", `'\''`) + "'"
		t.step(sandbox.BuildStepKindRun, args...)
	case "COPY":
		return t.copy(args, s.FilesHash)
	case "ENV":
		t.step(sandbox.BuildStepKindEnv, args...)
	case "WORKDIR":
		t.step(sandbox.BuildStepKindWorkdir, args...)
	case "USER":
		t.user = args[0]
		t.step(sandbox.BuildStepKindUser, args...)
	default:
		return missing("such a step")
	}
	return nil
}

// copy adds a copy step. The files of each upload are in a folder of their own.
func (t *translated) copy(args []string, hash string) error {
	if len(args) < 2 || !filesHash.MatchString(hash) {
		return errs.New(errs.InvalidArgument, "it needs two paths and the hash of its files")
	}
	if !slices.Contains(t.files, hash) {
		t.files = append(t.files, hash)
	}
	for len(args) < 3 {
		args = append(args, "")
	}
	args[0], args[2] = path.Join(hash, path.Join("/", args[0])), cmp.Or(args[2], t.user)
	t.step(sandbox.BuildStepKindCopy, args...)
	return nil
}

// Checks that E2B's clients make, and that have a better form here: ss does not
// see the sockets of gVisor, and an attempt has two seconds.
var (
	portCheck = regexp.MustCompile(`^\[ -n "\$\(ss [^)]*:([0-9]{1,5})\)" \]$`)
	timeCheck = regexp.MustCompile(`^sleep ([0-9]{1,4})(?:\.[0-9]+)?$`)
)

// readyTime is the longest time until a start command is ready.
const readyTime = 5 * time.Minute

// readyOf returns the check of a start command.
func readyOf(command string) *sandbox.TemplateReady {
	limit := readyTime
	r := &sandbox.TemplateReady{Timeout: &limit}
	if m := portCheck.FindStringSubmatch(command); m != nil {
		port, _ := strconv.ParseInt(m[1], 10, 64) // at most five digits; the domain checks it
		r.Port = &port
		return r
	}
	if m := timeCheck.FindStringSubmatch(command); m != nil {
		seconds, _ := strconv.Atoi(m[1]) // at most four digits
		limit += time.Duration(seconds) * time.Second
		command = fmt.Sprintf(`[ "$(cut -d. -f1 /proc/uptime)" -ge %d ]`, seconds)
	}
	r.Command = bash(command)
	return r
}
