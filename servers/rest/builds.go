package rest

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/opt"
	"miren.dev/runtime/pkg/source"
)

// tagLatest is the tag that the name of a template alone selects.
const tagLatest = "latest"

// dockerfileName is the path of a Dockerfile that a request has as text.
const dockerfileName = "Dockerfile"

// TemplateVersion is one build of a template.
type TemplateVersion struct {
	Template  string    `json:"template" doc:"Name of the template."`
	Number    int64     `json:"number" doc:"1, 2, ..." example:"1"`
	State     string    `json:"state" enum:"pending,building,ready,failed" doc:"pending: the first sandbox makes its image."`
	Tags      []string  `json:"tags" doc:"Tags that select it."`
	Image     string    `json:"image,omitempty" doc:"Reference with digest of its image."`
	Bytes     int64     `json:"bytes,omitempty" doc:"Size of its image, compressed."`
	Message   string    `json:"message,omitempty" doc:"Reason of a failure."`
	Hint      string    `json:"hint,omitempty" doc:"What to do about it."`
	CreatedAt time.Time `json:"created_at" doc:"Time of the request for it."`
}

// TemplateDetails is a template with its versions.
type TemplateDetails struct {
	Template
	Selected *TemplateVersion  `json:"selected,omitempty" doc:"The version that the name selects; absent: none is ready."`
	Versions []TemplateVersion `json:"versions" doc:"Its versions, newest first."`
}

// templateView is a template as RPC describes it.
type templateView struct {
	template *sandbox.Template
	selected *sandbox.TemplateVersion // nil: none is ready
	versions []*sandbox.TemplateVersion
	builds   []*app.Build
}

func showTemplate(ctx context.Context, name string) (*templateView, error) {
	return viewOf(templates(ctx).Show(ctx, &sandbox.TemplateRequest{Project: callerFrom(ctx).Project(), Template: name}))
}

func viewOf(resp *sandbox.TemplateResponse, err error) (*templateView, error) {
	if err != nil {
		return nil, err
	}
	v := &templateView{}
	if v.template, err = entity.Decode[sandbox.Template](&resp.Template); err != nil {
		return nil, err
	}
	if resp.Selected != nil {
		if v.selected, err = entity.Decode[sandbox.TemplateVersion](resp.Selected); err != nil {
			return nil, err
		}
	}
	if v.versions, err = decodeAll[sandbox.TemplateVersion](resp.Versions); err != nil {
		return nil, err
	}
	v.builds, err = decodeAll[app.Build](resp.Builds)
	return v, err
}

// build returns the build of a version; nil if it has none.
func (v *templateView) build(of *sandbox.TemplateVersion) *app.Build {
	i := slices.IndexFunc(v.builds, func(b *app.Build) bool { return b.Spec.TemplateVersion == of.GetID() })
	if i < 0 {
		return nil
	}
	return v.builds[i]
}

func (v *templateView) version(of *sandbox.TemplateVersion) TemplateVersion {
	out := TemplateVersion{
		Template: v.template.Name, Number: of.Spec.Number, State: string(of.Status.Phase), Tags: []string{}, Image: of.Status.Image, Bytes: of.Status.Bytes,
		Message: of.Status.Message, CreatedAt: of.CreatedAt,
	}
	for tag, n := range v.template.Spec.Tags {
		if n == of.Spec.Number {
			out.Tags = append(out.Tags, tag)
		}
	}
	slices.Sort(out.Tags)
	if b := v.build(of); b != nil && of.Status.Phase == sandbox.TemplatePhaseFailed {
		out.Hint = b.Status.Hint
	}
	return out
}

func (v *templateView) details() *body[TemplateDetails] {
	out := TemplateDetails{Template: templateOf(v.template), Versions: []TemplateVersion{}}
	for _, of := range v.versions {
		out.Versions = append(out.Versions, v.version(of))
	}
	if v.selected != nil {
		out.Selected = optionalOf(v.version(v.selected))
	}
	return &body[TemplateDetails]{out}
}

func templateAnswer(v *templateView, err error) (*body[TemplateDetails], error) {
	if err != nil {
		return nil, err
	}
	return v.details(), nil
}

func registerBuilds(a huma.API) {
	const tag = "templates"
	register(a, op(http.MethodPost, "/templates", "create-template", tag, "Begin to build a new template", status(http.StatusAccepted)), createTemplate)
	register(a, op(http.MethodPut, "/templates/{name}", "build-template", tag, "Begin to build a new version of a template, which is made if it does not exist", status(http.StatusAccepted)), buildTemplate)
	register(a, op(http.MethodDelete, "/templates/{name}", "delete-template", tag, "Delete a template, or one version of it; sessions made of it go on", status(http.StatusNoContent)), deleteTemplate)
	register(a, op(http.MethodGet, "/templates/{name}/logs", "get-template-logs", tag, "Get the log of the build of a version"), templateLogs)
	register(a, op(http.MethodPut, "/templates/{name}/tags/{tag}", "set-template-tag", tag, "Make a tag select a version"), setTag)
	register(a, op(http.MethodDelete, "/templates/{name}/tags/{tag}", "remove-template-tag", tag, "Remove a tag"), removeTag)
	register(a, op(http.MethodPut, "/templates/{name}/aliases/{alias}", "set-template-alias", tag, "Give a template another name"), setAlias)
	register(a, op(http.MethodDelete, "/templates/{name}/aliases/{alias}", "remove-template-alias", tag, "Remove another name of a template"), removeAlias)
	register(a, op(http.MethodPost, "/templates/{name}/rollback", "rollback-template", tag, "Make the name select an earlier version"), rollbackTemplate)
}

// Step is a step of the build of a template.
type Step struct {
	Kind string   `json:"kind" enum:"from,from_template,run,copy,env,user,workdir" doc:"from and from_template come first; without either it begins from template base."`
	Args []string `json:"args" minItems:"1" maxItems:"1000" doc:"run: a command, and the user if it is another. copy: a path of files, its path in the image, and if need be owner and mode. env: names and values in turn. Others: one." example:"[\"pip install requests\"]"`
}

// Ready says when a start command is ready.
type Ready struct {
	Port           int64    `json:"port,omitempty" minimum:"1" maximum:"65535" doc:"It is listened on."`
	Path           string   `json:"path,omitempty" maxLength:"1024" doc:"With port: GET of it answers below 400."`
	Command        []string `json:"command,omitempty" maxItems:"4096" doc:"It exits with 0."`
	TimeoutSeconds *int64   `json:"timeout_seconds,omitempty" minimum:"1" maximum:"3600" doc:"Longest time until then; absent: a minute."`
}

// TemplateBuild describes a version of a template. It is made of one of image,
// dockerfile and steps.
type TemplateBuild struct {
	Title       string            `json:"title,omitempty" maxLength:"200" doc:"Description for people; absent: as it is."`
	Image       string            `json:"image,omitempty" maxLength:"512" doc:"Image as it is: a base image, or one that a build of the project made, with its digest." example:"runtime/sandbox:base"`
	Dockerfile  string            `json:"dockerfile,omitempty" maxLength:"262144" doc:"Text of a Dockerfile."`
	Steps       []Step            `json:"steps,omitempty" maxItems:"200" doc:"Steps."`
	Files       []InputFile       `json:"files,omitempty" maxItems:"1000" doc:"Files for the Dockerfile or the steps, with relative paths; at most 8 MiB together."`
	Secrets     map[string]string `json:"secrets,omitempty" doc:"Values of build secrets: steps read them, the image does not have them."`
	NoCache     bool              `json:"no_cache,omitempty" doc:"Do not reuse earlier results."`
	Tags        []string          `json:"tags,omitempty" maxItems:"100" doc:"Tags that it gets when it is built; absent: latest."`
	Aliases     []string          `json:"aliases,omitempty" maxItems:"100" doc:"Other names of the template."`
	Start       []string          `json:"start,omitempty" maxItems:"4096" doc:"Command that runs in every sandbox from its start on."`
	Ready       *Ready            `json:"ready,omitempty" doc:"When the start command is ready; absent: as soon as it was started."`
	Env         map[string]string `json:"env,omitempty" doc:"Environment variables of its sandboxes."`
	User        string            `json:"user,omitempty" maxLength:"256" doc:"User of the processes; absent: the image's."`
	Workdir     string            `json:"workdir,omitempty" maxLength:"4095" doc:"Working directory; absent: the image's."`
	CPUMillis   *int64            `json:"cpu_millis,omitempty" minimum:"10" maximum:"1024000" doc:"CPU of its sandboxes, in thousandths."`
	MemoryBytes *int64            `json:"memory_bytes,omitempty" minimum:"33554432" doc:"Memory of its sandboxes."`
	DiskBytes   *int64            `json:"disk_bytes,omitempty" minimum:"1048576" doc:"Bytes that its sandboxes may write."`
}

// NewTemplate describes a template and its first version.
type NewTemplate struct {
	Name string `json:"name" minLength:"1" maxLength:"63" pattern:"^[a-z0-9][a-z0-9._-]*$" doc:"Name." example:"shop"`
	TemplateBuild
}

// BuildWait says how long a request waits for the end of a build.
type BuildWait struct {
	WaitSeconds int64 `query:"wait" minimum:"0" maximum:"600" default:"0" doc:"Longest time until the version is built or has failed, in seconds. Then it is returned as it is."`
}

type createTemplateInput struct {
	BuildWait
	Body NewTemplate
}

// TemplateNameInput names a template, not a version of it.
type TemplateNameInput struct {
	Name string `path:"name" maxLength:"63" pattern:"^[a-z0-9][a-z0-9._-]*$" doc:"Name of the template." example:"shop"`
}

type buildTemplateInput struct {
	TemplateNameInput
	BuildWait
	Body TemplateBuild
}

type builtVersion struct {
	Location string `header:"Location"`
	Body     TemplateVersion
}

func createTemplate(ctx context.Context, in *createTemplateInput) (*builtVersion, error) {
	return build(ctx, in.Body.Name, &in.Body.TemplateBuild, true, in.WaitSeconds)
}

func buildTemplate(ctx context.Context, in *buildTemplateInput) (*builtVersion, error) {
	return build(ctx, in.Name, &in.Body, false, in.WaitSeconds)
}

// build begins the build of a version, waits for its end for some time, and
// returns the version as it is then.
func build(ctx context.Context, name string, b *TemplateBuild, isNew bool, wait int64) (*builtVersion, error) {
	caller := callerFrom(ctx)
	req := &sandbox.BuildTemplateRequest{
		Project: caller.Project(), Name: name, New: opt.Of(isNew), Title: b.Title, Image: b.Image, NoCache: opt.Of(b.NoCache), Secrets: b.Secrets, Tags: b.Tags, Aliases: b.Aliases,
		Start: b.Start, Env: b.Env, User: b.User, Workdir: b.Workdir, CPUMillis: b.CPUMillis, MemoryBytes: b.MemoryBytes, DiskBytes: b.DiskBytes,
	}
	if r := b.Ready; r != nil {
		req.Ready = &sandbox.TemplateReady{Port: opt.Of(r.Port), Path: r.Path, Command: r.Command, Timeout: seconds(r.TimeoutSeconds)}
	}
	for _, s := range b.Steps {
		req.Steps = append(req.Steps, sandbox.BuildStep{Kind: sandbox.BuildStepKind(s.Kind), Args: s.Args})
	}
	if b.Dockerfile != "" {
		req.Dockerfile = dockerfileName
	}
	if err := req.Validate(); err != nil {
		return nil, err // before its files are uploaded
	}
	var err error
	if req.Source, err = uploadFiles(ctx, b.Dockerfile, b.Files); err != nil {
		return nil, err
	}
	resp, err := templates(ctx).Build(ctx, req)
	if err != nil {
		return nil, err
	}
	v, err := entity.Decode[sandbox.TemplateVersion](&resp.Version)
	if err != nil {
		return nil, err
	}
	name = fmt.Sprintf("%s:%d", resp.Template.Name, v.Spec.Number)
	if wait > 0 {
		wctx, cancel := context.WithTimeout(ctx, time.Duration(wait)*time.Second)
		defer cancel()
		_, err := templates(ctx).Wait(wctx, &sandbox.TemplateRequest{Project: req.Project, Template: name})
		if err != nil && (!errs.Is(err, errs.DeadlineExceeded) || ctx.Err() != nil) {
			return nil, err
		}
	}
	view, err := showTemplate(ctx, name)
	if err != nil {
		return nil, err
	}
	return &builtVersion{Prefix + "/templates/" + name, view.version(view.selected)}, nil
}

// uploadFiles uploads files, and a Dockerfile if its text is not empty, and returns the
// digest of the source that they are; "" without files.
func uploadFiles(ctx context.Context, dockerfile string, given []InputFile) (string, error) {
	var files []source.Content
	for _, f := range given {
		files = append(files, source.Content{Path: f.Path, Data: f.Data, Executable: f.Executable})
	}
	if dockerfile != "" {
		files = append(files, source.Content{Path: dockerfileName, Data: []byte(dockerfile)})
	}
	if len(files) == 0 {
		return "", nil
	}
	m, err := source.NewMemory(files)
	if err != nil {
		return "", err
	}
	encoded, err := m.Manifest.Encode()
	if err != nil {
		return "", err
	}
	deploys := app.NewDeploysClient(callerFrom(ctx).Client)
	plan, err := deploys.PlanUpload(ctx, &app.PlanUploadRequest{Manifest: encoded})
	if err != nil {
		return "", err
	}
	if len(plan.Missing) == 0 {
		return plan.Source, nil
	}
	return plan.Source, sendPack(ctx, deploys, m, plan)
}

// sendPack sends the contents that the server lacks.
func sendPack(ctx context.Context, deploys app.DeploysClient, m *source.Memory, plan *app.PlanUploadResponse) error {
	st, err := deploys.Upload(ctx, &app.UploadRequest{Source: plan.Source})
	if err != nil {
		return err
	}
	defer st.Close()
	digests := make([]source.Digest, len(plan.Missing))
	for i, d := range plan.Missing {
		digests[i] = source.Digest(d)
	}
	if err = m.WritePack(ctx, st.Writer(), digests); err == nil {
		err = st.CloseSend()
	}
	// If the server stopped reading, its answer has the reason.
	if _, rerr := st.Recv(); rerr != nil && rerr != io.EOF {
		return rerr
	}
	return err
}

func getTemplate(ctx context.Context, in *TemplateInput) (*body[TemplateDetails], error) {
	return templateAnswer(showTemplate(ctx, in.Name))
}

func deleteTemplate(ctx context.Context, in *TemplateInput) (*struct{}, error) {
	return nil, templates(ctx).Delete(ctx, &sandbox.TemplateRequest{Project: callerFrom(ctx).Project(), Template: in.Name})
}

type templateLogsInput struct {
	TemplateInput
	After int64 `query:"after" minimum:"0" doc:"Only lines after this position, the next of an answer before."`
	Limit int   `query:"limit" minimum:"1" maximum:"10000" default:"1000" doc:"Most lines of the answer."`
}

// BuildLog is a part of the log of a build.
type BuildLog struct {
	Template string      `json:"template" doc:"Name of the template."`
	Version  int64       `json:"version" doc:"Number of the version."`
	State    string      `json:"state" enum:"pending,running,succeeded,failed,canceled" doc:"State of the build when the log was read."`
	Lines    []BuildLine `json:"lines" doc:"Lines, the oldest first."`
	Next     int64       `json:"next" doc:"Position after the last line: after of the next request."`
	More     bool        `json:"more" doc:"There are more lines already."`
}

// BuildLine is an event of a build.
type BuildLine struct {
	At   time.Time `json:"at" doc:"Time."`
	Kind string    `json:"kind" doc:"started, progress, log, cached, done, failed, canceled, warning."`
	Step int64     `json:"step,omitempty" doc:"Number of its step; absent for what belongs to none."`
	Name string    `json:"name,omitempty" doc:"Name of the step."`
	Text string    `json:"text,omitempty" doc:"A line of output, or why it failed."`
}

func templateLogs(ctx context.Context, in *templateLogsInput) (*body[BuildLog], error) {
	view, err := showTemplate(ctx, in.Name)
	if err != nil {
		return nil, err
	}
	of := view.selected
	if !strings.Contains(in.Name, ":") && len(view.versions) > 0 {
		of = view.versions[0]
	}
	if of == nil {
		return nil, errs.New(errs.NotFound, "template %s has no version", in.Name)
	}
	b := view.build(of)
	if b == nil {
		return nil, errs.New(errs.NotFound, "version %d of template %s has no build", of.Spec.Number, view.template.Name)
	}
	st, err := app.NewBuildsClient(callerFrom(ctx).Client).Logs(ctx, &app.BuildLogsRequest{Build: b.GetID(), Offset: opt.Of(in.After)})
	if err != nil {
		return nil, err
	}
	defer st.Close()
	out := BuildLog{Template: view.template.Name, Version: of.Spec.Number, State: string(b.Status.Phase), Lines: []BuildLine{}, Next: in.After}
	for {
		l, err := st.Recv()
		switch {
		case err == io.EOF, errs.Is(err, errs.NotFound) && b.Status.Phase == app.BuildPhasePending: // it has no log yet
			return &body[BuildLog]{out}, nil
		case err != nil:
			return nil, err
		case len(out.Lines) == in.Limit:
			out.More = true
			return &body[BuildLog]{out}, nil
		}
		e := &l.Event
		out.Lines = append(out.Lines, BuildLine{At: e.At, Kind: e.Kind, Step: opt.Value(e.Step), Name: e.Name, Text: strings.ToValidUTF8(e.Text, "\uFFFD")})
		out.Next = l.Offset
	}
}

// TagInput names a tag of a template.
type TagInput struct {
	TemplateNameInput
	Tag string `path:"tag" maxLength:"63" pattern:"^[a-z0-9][a-z0-9._-]*$" doc:"The tag." example:"stable"`
}

type setTagInput struct {
	TagInput
	Body struct {
		Version string `json:"version" minLength:"1" maxLength:"63" pattern:"^[a-z0-9][a-z0-9._-]*$" doc:"Number of the version, or another tag of it." example:"2"`
	}
}

func setTag(ctx context.Context, in *setTagInput) (*body[TemplateDetails], error) {
	return tagVersion(ctx, in.Name, in.Body.Version, in.Tag)
}

func tagVersion(ctx context.Context, name, version, tag string) (*body[TemplateDetails], error) {
	return templateAnswer(viewOf(templates(ctx).Tag(ctx, &sandbox.TagTemplateRequest{
		Project: callerFrom(ctx).Project(), Template: name + ":" + version, Tag: tag,
	})))
}

func removeTag(ctx context.Context, in *TagInput) (*body[TemplateDetails], error) {
	return templateAnswer(viewOf(templates(ctx).Tag(ctx, &sandbox.TagTemplateRequest{
		Project: callerFrom(ctx).Project(), Template: in.Name, Tag: in.Tag, Remove: opt.Of(true),
	})))
}

// AliasInput names another name of a template.
type AliasInput struct {
	TemplateNameInput
	Alias string `path:"alias" maxLength:"63" pattern:"^[a-z0-9][a-z0-9._-]*$" doc:"The other name." example:"store"`
}

func setAlias(ctx context.Context, in *AliasInput) (*body[TemplateDetails], error) {
	return changeAlias(ctx, in, false)
}

func removeAlias(ctx context.Context, in *AliasInput) (*body[TemplateDetails], error) {
	return changeAlias(ctx, in, true)
}

func changeAlias(ctx context.Context, in *AliasInput, remove bool) (*body[TemplateDetails], error) {
	return templateAnswer(viewOf(templates(ctx).Alias(ctx, &sandbox.AliasTemplateRequest{
		Project: callerFrom(ctx).Project(), Template: in.Name, Alias: in.Alias, Remove: opt.Of(remove),
	})))
}

type rollbackInput struct {
	TemplateNameInput
	Body struct {
		Version string `json:"version,omitempty" maxLength:"63" pattern:"^[a-z0-9][a-z0-9._-]*$" doc:"Number or tag of the version; absent: the newest ready one before that which the name selects."`
	}
}

// rollbackTemplate gives the tag latest to an earlier version.
func rollbackTemplate(ctx context.Context, in *rollbackInput) (*body[TemplateDetails], error) {
	to := in.Body.Version
	if to == "" {
		view, err := showTemplate(ctx, in.Name)
		if err != nil {
			return nil, err
		}
		i := slices.IndexFunc(view.versions, func(v *sandbox.TemplateVersion) bool {
			return view.selected != nil && v.Spec.Number < view.selected.Spec.Number && v.Status.Phase == sandbox.TemplatePhaseReady
		})
		if i < 0 {
			return nil, errs.New(errs.FailedPrecondition, "template %s has no ready version before the one that its name selects", in.Name)
		}
		to = strconv.FormatInt(view.versions[i].Spec.Number, 10)
	}
	return tagVersion(ctx, in.Name, to, tagLatest)
}
