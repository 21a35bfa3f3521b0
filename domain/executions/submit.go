package executions

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base32"
	"encoding/hex"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"miren.dev/runtime/api/execution"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/domain/projects"
	"miren.dev/runtime/domain/sandboxes"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/informer"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/pkg/text"
)

// submitTimeout bounds a submission. It is less than the time for which an
// execution that ended stays in the store (Linger), so that a second submission
// with its key finds it in one of both.
const submitTimeout = 30 * time.Second

// Linger is how long an execution stays in the store after its end.
const Linger = time.Minute

// parallelWrites is how many requests of a batch are written at the same time.
const parallelWrites = 8

// maxSummary bounds the summary of an execution, in bytes.
const maxSummary = 200

// Submitter is who submits an execution.
type Submitter struct {
	Name string    // of the identity
	Key  id.APIKey // "": none
}

// Submit accepts an execution and returns it. With a key that was used before it returns that execution, unless the
// request is another one: AlreadyExists. Errors: InvalidArgument for what cannot
// run; NotFound for a sandbox or template that does not exist; ResourceExhausted
// if too many wait, or the quota of the project or of the key has no room for it.
func (s *Service) Submit(ctx context.Context, req *execution.SubmitRequest, by Submitter) (*execution.Execution, error) {
	pid, err := projects.Find(ctx, s.Store, req.Project)
	if err != nil {
		return nil, err
	}
	eid := id.NewExecution()
	if req.Key != "" {
		eid = keyID("exec", string(pid), req.Key)
	}
	list, err := s.accept(ctx, pid, []*execution.SubmitRequest{req}, by, req.Key != "", func(e *execution.Execution) { e.ID = schema.ID(eid) })
	if err != nil {
		return nil, err
	}
	return list[0], nil
}

// SubmitBatch accepts all executions or none, and returns them with the id of
// the batch. A key is that of the batch: its executions have none.
func (s *Service) SubmitBatch(ctx context.Context, req *execution.SubmitBatchRequest, by Submitter) (string, []*execution.Execution, error) {
	pid, err := projects.Find(ctx, s.Store, req.Project)
	if err != nil {
		return "", nil, err
	}
	if n := len(req.Executions); n == 0 || n > execution.MaxBatch {
		return "", nil, errs.New(errs.InvalidArgument, "a batch of %d executions; it has 1 to %d", n, execution.MaxBatch)
	}
	requests := make([]*execution.SubmitRequest, len(req.Executions))
	for i := range req.Executions {
		r := new(req.Executions[i])
		if r.Key != "" || r.Project != "" && cmp.Or(req.Project, projects.Default) != r.Project {
			return "", nil, errs.New(errs.InvalidArgument, "execution %d: the batch has project and key, not its executions", i)
		}
		r.Project = req.Project
		requests[i] = r
	}
	batch := string(schema.NewID("batch"))
	if req.Key != "" {
		batch = string(keyID("batch", string(pid), req.Key))
	}
	i := 0
	list, err := s.accept(ctx, pid, requests, by, req.Key != "", func(e *execution.Execution) {
		e.ID = schema.ID(memberID(batch, i))
		e.Spec.Batch, e.Spec.BatchIndex, e.Spec.BatchSize = batch, int64(i), int64(len(requests))
		// The place in the batch is part of the order.
		e.Status.NotBefore = e.Status.NotBefore.Add(time.Duration(i) * time.Microsecond)
		i++
	})
	return batch, list, err
}

// keyID returns the id that a key of a project always leads to.
func keyID(kind, project, key string) id.Execution {
	sum := sha256.Sum256([]byte(kind + "\x00" + project + "\x00" + key))
	return id.Execution(kind + "-" + strings.ToLower(base32.HexEncoding.EncodeToString(sum[:]))[:26])
}

// memberID returns the id of an execution of a batch.
func memberID(batch string, i int) id.Execution { return keyID("exec", batch, strconv.Itoa(i)) }

// accept creates the executions of requests, which identify completes, or
// returns those that exist. keyed says that they may exist.
func (s *Service) accept(ctx context.Context, project schema.ID, requests []*execution.SubmitRequest, by Submitter, keyed bool, identify func(*execution.Execution)) ([]*execution.Execution, error) {
	ctx, cancel := context.WithTimeout(ctx, submitTimeout)
	defer cancel()
	list := make([]*execution.Execution, len(requests))
	for i, req := range requests {
		e, err := s.prepare(ctx, project, req)
		if err != nil {
			if len(requests) > 1 {
				return nil, errs.Wrap(err, "execution %d", i)
			}
			return nil, err
		}
		e.Spec.Actor, e.Spec.APIKey = text.Cut(by.Name, 512), string(by.Key)
		identify(e)
		e.Spec.Objects = prefix(e.GetID(), time.Now())
		list[i] = e
	}
	if keyed {
		if found, err := s.existing(ctx, list); err != nil || found != nil {
			return found, err
		}
	}
	ops, err := s.writeRequests(ctx, list, requests)
	if err != nil {
		return nil, err
	}
	res, err := s.Store.Txn(ctx, entity.TxnRequest{RequestID: string(schema.NewID("submit")), Ops: ops})
	if errs.Is(err, errs.AlreadyExists) && keyed { // another submission came first
		found, ferr := s.existing(ctx, list)
		if ferr != nil || found != nil {
			return found, ferr
		}
	}
	if err != nil {
		return nil, err
	}
	for i, e := range list {
		e.Meta = res.Records[i].Meta
	}
	return list, nil
}

// writeRequests makes the requests of executions durable, if there is room for
// them, and returns the operations that create the executions.
func (s *Service) writeRequests(ctx context.Context, list []*execution.Execution, requests []*execution.SubmitRequest) ([]entity.Op, error) {
	ops, data := make([]entity.Op, len(list)), make([][]byte, len(list))
	var size int64
	for i, e := range list {
		var err error
		if data[i], err = encode(requestKey(e), withoutSecrets(requests[i])); err != nil {
			return nil, err
		}
		e.Spec.InputBytes = int64(len(data[i]))
		size += e.Spec.InputBytes
		if ops[i], err = entity.CreateOp(e); err != nil {
			return nil, err
		}
	}
	if err := s.admit(len(list), size); err != nil {
		return nil, err
	}
	if s.Quota != nil { // before the requests are written
		if err := s.Quota(ctx, ops); err != nil {
			return nil, err
		}
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(parallelWrites)
	for i, e := range list {
		g.Go(func() error { return create(gctx, s.Objects, requestKey(e), data[i]) })
	}
	return ops, g.Wait()
}

// admit returns ResourceExhausted if n more executions with requests of size
// bytes are too many. The bounds are soft: submissions at the same time do not
// see each other.
func (s *Service) admit(n int, size int64) error {
	stored := informer.Of[execution.Execution](s.Informers).Len()
	if s.MaxQueued > 0 && stored+n > s.MaxQueued {
		return errs.New(errs.ResourceExhausted, "%d executions wait, run or have just ended; at most %d may", stored, s.MaxQueued).
			WithHint("submit again later; executions.queue is the limit")
	}
	if size += s.inputBytes.Load(); s.MaxBytes > 0 && size > s.MaxBytes {
		return errs.New(errs.ResourceExhausted, "the requests of executions that wait or run would have %d MiB; at most %d MiB are possible", size>>20, s.MaxBytes>>20).
			WithHint("submit again later; half of executions.store_bytes is the limit")
	}
	return nil
}

// existing returns the executions with the ids of list, nil if there are none.
// AlreadyExists if they were submitted by another request.
func (s *Service) existing(ctx context.Context, list []*execution.Execution) ([]*execution.Execution, error) {
	var out []*execution.Execution
	for i, e := range list {
		found, err := s.get(ctx, e.Project, e.GetID())
		if i == 0 && errs.Is(err, errs.NotFound) {
			return nil, nil // they were accepted together
		}
		if err != nil {
			return nil, err
		}
		if found.Spec.Fingerprint != e.Spec.Fingerprint || found.Spec.BatchSize != e.Spec.BatchSize {
			return nil, errs.New(errs.AlreadyExists, "the key was used for another request").With("execution", string(found.ID)).
				WithHint("use another key, or repeat the request of execution %s unchanged", found.ID)
		}
		out = append(out, found)
	}
	return out, nil
}

// prepare checks a request and returns the execution that it describes.
func (s *Service) prepare(ctx context.Context, project schema.ID, req *execution.SubmitRequest) (*execution.Execution, error) {
	e := execution.NewExecution()
	e.Project, e.Labels, e.Status.NotBefore = project, req.Labels, time.Now()
	sp := &e.Spec
	sp.Sandbox, sp.Agent, sp.Key = string(req.Sandbox), req.Agent, req.Key
	if req.Timeout != nil {
		sp.Timeout = *req.Timeout
	}
	if req.Priority != nil {
		sp.Priority = *req.Priority
	}
	if req.Retry != nil {
		sp.Retry = *req.Retry
	}
	if at := req.NotBefore; at != nil && at.After(e.Status.NotBefore) {
		if at.Sub(e.Status.NotBefore) > execution.MaxAhead {
			return nil, errs.New(errs.InvalidArgument, "not_before is more than %v ahead", execution.MaxAhead)
		}
		e.Status.NotBefore, e.Status.Phase = *at, execution.PhaseWaiting
	}
	if err := checkProgram(req, sp); err != nil {
		return nil, err
	}
	if err := s.checkPlace(ctx, project, req, sp); err != nil {
		return nil, err
	}
	for k, v := range req.EnvSecret {
		sec, err := s.Sealer.Seal(v)
		if err != nil {
			return nil, err
		}
		if sp.Secrets == nil {
			sp.Secrets = map[string]schema.Secret{}
		}
		sp.Secrets[k] = sec
	}
	var err error
	sp.Fingerprint, err = fingerprint(req)
	return e, err
}

// checkProgram checks what runs, and sets language, template and summary.
func checkProgram(req *execution.SubmitRequest, sp *execution.ExecutionSpec) error {
	if (len(req.Code) == 0) == (len(req.Command) == 0) {
		return errs.New(errs.InvalidArgument, "an execution has either code or a command")
	}
	if size := inputSize(req); size > execution.MaxInput {
		return errs.New(errs.InvalidArgument, "the request has %d bytes, more than %d MiB", size, execution.MaxInput>>20).
			WithHint("run it in a sandbox with a volume, or let it fetch its input")
	}
	if err := sandboxes.CheckProcess(req.Command, Environment(req, req.EnvSecret, "", "")); err != nil {
		return err
	}
	sp.Template = req.Template
	if len(req.Command) > 0 {
		if len(req.Args) > 0 || req.File != "" || req.Language != "" || len(req.Files) > 0 || isSet(req.Confine) {
			return errs.New(errs.InvalidArgument, "args, file, files, language and confine belong to code, not to a command")
		}
		sp.Summary = summary(req.Command)
		return nil
	}
	if req.Image != "" {
		return errs.New(errs.InvalidArgument, "code runs in a sandbox of a template: image cannot be stated")
	}
	if req.Workdir != "" && (req.Sandbox != "" || req.Agent != "") {
		return errs.New(errs.InvalidArgument, "code runs in the working directory of its sandbox: workdir cannot be stated")
	}
	code := Program(req)
	lang, err := code.Check()
	if err != nil {
		return err
	}
	sp.Language, sp.Summary = lang.Name, summary(append([]string{lang.Name, cmp.Or(req.File, lang.File)}, req.Args...))
	if sp.Sandbox == "" {
		sp.Template = cmp.Or(req.Template, lang.Template)
	}
	return nil
}

// Program returns the program that a request with code describes, without the
// sandbox in which it runs.
func Program(req *execution.SubmitRequest) sandboxes.RunCodeRequest {
	p := sandboxes.RunCodeRequest{Language: req.Language, Code: req.Code, File: req.File, Args: req.Args, Confine: isSet(req.Confine)}
	for _, f := range req.Files {
		p.Files = append(p.Files, sandboxes.InputFile{Path: f.Path, Data: f.Data, Executable: isSet(f.Executable)})
	}
	return p
}

func isSet(b *bool) bool { return b != nil && *b }

// Environment returns the variables of a program: those of its request, those
// that are secret, the id of its execution, and the file for its result.
func Environment(req *execution.SubmitRequest, secrets map[string]string, eid id.Execution, result string) map[string]string {
	env := map[string]string{}
	maps.Copy(env, req.Env)
	maps.Copy(env, secrets)
	env["EXECUTION_ID"], env["EXECUTION_RESULT"] = string(eid), result
	return env
}

// inputSize returns the bytes of what a request has to keep until it runs.
func inputSize(req *execution.SubmitRequest) int {
	size := len(req.Code) + len(req.Stdin)
	for _, f := range req.Files {
		size += len(f.Path) + len(f.Data)
	}
	for _, a := range slices.Concat(req.Args, req.Command) {
		size += len(a)
	}
	for k, v := range req.Env {
		size += len(k) + len(v)
	}
	return size
}

// checkPlace checks where it runs.
func (s *Service) checkPlace(ctx context.Context, project schema.ID, req *execution.SubmitRequest, sp *execution.ExecutionSpec) error {
	if sp.Sandbox != "" {
		if req.Image+req.Template+req.Agent+string(req.Network) != "" || req.CPUMillis != nil || req.MemoryBytes != nil || req.Egress != nil || len(req.Volumes) > 0 {
			return errs.New(errs.InvalidArgument, "the sandbox exists: image, template, agent, limits, network and volumes cannot be stated")
		}
		sb, err := entity.Get[sandbox.Sandbox](ctx, s.Store, req.Sandbox)
		if err == nil && sb.Project != project {
			return errs.New(errs.NotFound, "the project has no sandbox %s", req.Sandbox)
		}
		if err != nil {
			return err
		}
		return s.Policies.CheckProgram(ctx, sb, isSet(req.Confine))
	}
	sb := sandbox.NewSandbox() // in which it will run
	sb.Project = project
	if err := s.Policies.CheckProgram(ctx, sb, isSet(req.Confine)); err != nil {
		return err
	}
	switch {
	case req.Image != "" && sp.Template != "":
		return errs.New(errs.InvalidArgument, "a sandbox has an image or a template, not both")
	case req.Image == "" && sp.Template == "":
		return errs.New(errs.InvalidArgument, "a command needs a sandbox, a template or an image")
	case req.Image != "" && req.Agent != "":
		return errs.New(errs.InvalidArgument, "an agent needs a template: its session is a sandbox of that")
	case sp.Template == "":
		return s.Policies.CheckSource(ctx, sb)
	}
	_, v, err := s.Templates.Find(ctx, project, sp.Template)
	if err != nil {
		return err
	}
	sb.Spec.TemplateVersion = v.GetID()
	return s.Policies.CheckSource(ctx, sb)
}

// summary returns the begin of a command line for people.
func summary(args []string) string {
	line := strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(strings.Join(args, " "), "\uFFFD"))
	return text.Cut(line, maxSummary)
}

// withoutSecrets returns a request with the names of its secrets only.
func withoutSecrets(req *execution.SubmitRequest) *execution.SubmitRequest {
	r := *req
	r.EnvSecret = maps.Clone(req.EnvSecret)
	for k := range r.EnvSecret {
		r.EnvSecret[k] = ""
	}
	return &r
}

// fingerprint returns a hash by which requests with the same key are compared.
// It leaves out the values of secrets, which it would make guessable, and the
// time, which a caller that means "in an hour" computes anew.
func fingerprint(req *execution.SubmitRequest) (string, error) {
	r := withoutSecrets(req)
	r.Project, r.Key, r.NotBefore = "", "", nil
	b, err := json.Marshal(r)
	if err != nil {
		return "", errs.New(errs.InvalidArgument, "encode the request: %w", err)
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:]), nil
}
