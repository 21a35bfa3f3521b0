package rest

import (
	"context"
	"io"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/pkg/opt"
	"miren.dev/runtime/servers/api"
)

// File describes a file of a session.
type File struct {
	Name       string    `json:"name" doc:"Last element of its path."`
	Type       string    `json:"type" enum:"file,directory,symlink,other" doc:"Type."`
	Mode       int64     `json:"mode" doc:"Permission bits."`
	SizeBytes  int64     `json:"size_bytes" doc:"Size."`
	ModifiedAt time.Time `json:"modified_at" doc:"Time of the last change of its content."`
	UID        int64     `json:"uid" doc:"Number of the owner."`
	GID        int64     `json:"gid" doc:"Number of the group."`
	Target     string    `json:"target,omitempty" doc:"Target of a symbolic link."`
}

func fileOf(f *sandbox.FileInfo) File {
	return File{
		Name: f.Name, Type: string(f.Type), Mode: f.Mode, SizeBytes: f.SizeBytes, ModifiedAt: f.ModifiedAt, UID: f.UID, GID: f.GID, Target: f.Target,
	}
}

// FilePage is a page of a directory.
type FilePage struct {
	Files []File `json:"files" doc:"Entries, by name."`
	More  bool   `json:"more" doc:"There are more after the last one."`
}

// FileInput names a file of a session.
type FileInput struct {
	SessionInput
	Path string `query:"path" required:"true" minLength:"1" maxLength:"4095" doc:"Path; a relative one is below the working directory." example:"data.csv"`
	User string `query:"user" maxLength:"256" doc:"User whose permissions hold; absent: that of the session."`
}

type listFilesInput struct {
	SessionInput
	Path  string `query:"path" minLength:"1" maxLength:"4095" default:"." doc:"Directory; a relative path is below the working directory."`
	User  string `query:"user" maxLength:"256" doc:"User whose permissions hold; absent: that of the session."`
	After string `query:"after" maxLength:"255" doc:"Only names after this one."`
	Limit int64  `query:"limit" minimum:"1" maximum:"1024" default:"1024" doc:"Most entries of a page."`
}

type writeInput struct {
	FileInput
	Mode    int64 `query:"mode" minimum:"0" maximum:"4095" doc:"Permission bits of a new file, in decimal; 0: 0644."`
	Parents bool  `query:"parents" doc:"Missing directories are made."`
	content io.Reader
}

// Resolve implements huma.Resolver: the content is not read into memory.
func (in *writeInput) Resolve(c huma.Context) []error {
	r, _ := humago.Unwrap(c)
	in.content = r.Body
	return nil
}

type removeInput struct {
	FileInput
	Recursive bool `query:"recursive" doc:"A directory is removed with everything in it."`
}

func registerFiles(a huma.API) {
	const tag = "files"
	binary := map[string]*huma.MediaType{"application/octet-stream": {Schema: &huma.Schema{Type: huma.TypeString, Format: "binary"}}}
	register(a, op(http.MethodGet, "/sessions/{id}/files", "list-files", tag, "List a directory of a session"), listFiles)
	register(a, op(http.MethodGet, "/sessions/{id}/files/content", "read-file", tag, "Read a file of a session", func(o *huma.Operation) {
		o.Responses = map[string]*huma.Response{"200": {Description: "The content.", Content: binary}}
	}), readFile)
	register(a, op(http.MethodPut, "/sessions/{id}/files/content", "write-file", tag, "Write a file of a session", func(o *huma.Operation) {
		o.RequestBody = &huma.RequestBody{Description: "The content.", Content: binary}
	}), writeFile)
	register(a, op(http.MethodDelete, "/sessions/{id}/files", "remove-file", tag, "Remove a file or directory of a session", status(http.StatusNoContent)), removeFile)
}

func files(ctx context.Context) sandbox.FilesClient {
	return sandbox.NewFilesClient(callerFrom(ctx).Client)
}

func listFiles(ctx context.Context, in *listFilesInput) (*body[FilePage], error) {
	sid, err := in.persistent()
	if err != nil {
		return nil, err
	}
	resp, err := files(ctx).List(ctx, &sandbox.ListFilesRequest{Sandbox: sid, Path: in.Path, User: in.User, After: in.After, Limit: &in.Limit})
	if err != nil {
		return nil, err
	}
	out := FilePage{Files: []File{}, More: resp.More}
	for i := range resp.Files {
		out.Files = append(out.Files, fileOf(&resp.Files[i]))
	}
	return &body[FilePage]{out}, nil
}

func readFile(ctx context.Context, in *FileInput) (*huma.StreamResponse, error) {
	sid, err := in.persistent()
	if err != nil {
		return nil, err
	}
	st, err := files(ctx).Read(ctx, &sandbox.ReadFileRequest{Sandbox: sid, Path: in.Path, User: in.User})
	if err != nil {
		return nil, err
	}
	first, err := st.Recv()
	if err != nil {
		st.Close()
		return nil, err
	}
	return &huma.StreamResponse{Body: func(c huma.Context) {
		defer st.Close()
		c.SetHeader("Content-Type", "application/octet-stream")
		_, w := humago.Unwrap(c)
		api.SendFile(w, first, st)
	}}, nil
}

func writeFile(ctx context.Context, in *writeInput) (*body[File], error) {
	sid, err := in.persistent()
	if err != nil {
		return nil, err
	}
	info, err := api.WriteFile(ctx, files(ctx), &sandbox.WriteFileRequest{
		Sandbox: sid, Path: in.Path, User: in.User, Mode: opt.Of(in.Mode), Parents: opt.Of(in.Parents),
	}, in.content)
	if err != nil {
		return nil, err
	}
	return &body[File]{fileOf(info)}, nil
}

func removeFile(ctx context.Context, in *removeInput) (*struct{}, error) {
	sid, err := in.persistent()
	if err != nil {
		return nil, err
	}
	return nil, files(ctx).Remove(ctx, &sandbox.RemoveFileRequest{Sandbox: sid, Path: in.Path, User: in.User, Recursive: opt.Of(in.Recursive)})
}
