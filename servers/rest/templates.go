package rest

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/entity"
)

// Template is what sessions are made of by name.
type Template struct {
	Name      string           `json:"name" doc:"Name."`
	Title     string           `json:"title,omitempty" doc:"Description for people."`
	Aliases   []string         `json:"aliases,omitempty" doc:"Other names."`
	Tags      map[string]int64 `json:"tags,omitempty" doc:"Versions by tag."`
	Version   int64            `json:"version" doc:"Number of its newest version."`
	CreatedAt time.Time        `json:"created_at" doc:"Time of its creation."`
}

func templateOf(t *sandbox.Template) Template {
	return Template{Name: t.Name, Title: t.Spec.Title, Aliases: t.Spec.Aliases, Tags: t.Spec.Tags, Version: t.Status.Number, CreatedAt: t.CreatedAt}
}

// TemplateList is every template that the project can use.
type TemplateList struct {
	Templates []Template `json:"templates" doc:"Those of the project, and those that come with the system, by name."`
}

// TemplateInput names a template or a version of it.
type TemplateInput struct {
	Name string `path:"name" maxLength:"200" doc:"NAME, NAME:TAG or NAME:NUMBER." example:"python"`
}

func registerTemplates(a huma.API) {
	const tag = "templates"
	register(a, op(http.MethodGet, "/templates", "list-templates", tag, "List the templates that the project can use"), listTemplates)
	register(a, op(http.MethodGet, "/templates/{name}", "get-template", tag, "Get a template"), getTemplate)
}

func templates(ctx context.Context) sandbox.TemplatesClient {
	return sandbox.NewTemplatesClient(callerFrom(ctx).Client)
}

func listTemplates(ctx context.Context, _ *struct{}) (*body[TemplateList], error) {
	resp, err := templates(ctx).List(ctx, &sandbox.TemplatesRequest{Project: callerFrom(ctx).Project()})
	if err != nil {
		return nil, err
	}
	out := TemplateList{Templates: []Template{}}
	for i := range resp.Templates {
		t, err := entity.Decode[sandbox.Template](&resp.Templates[i])
		if err != nil {
			return nil, err
		}
		out.Templates = append(out.Templates, templateOf(t))
	}
	return &body[TemplateList]{out}, nil
}
