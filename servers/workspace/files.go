package workspace

import (
	"io"
	"mime"
	"net/http"
	"path"

	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/servers/api"
)

// uploaded is a file that a request brought.
type uploaded struct {
	Name string `json:"filename"`
	Size int64  `json:"size"`
}

// upload writes files into the working directory: those of a form, or the body
// under the name of the query.
func upload(c *call, w http.ResponseWriter, r *http.Request) error {
	sb, err := c.find(r.PathValue("id"))
	if err != nil {
		return err
	}
	out := struct {
		Session string     `json:"session_id"`
		Files   []uploaded `json:"files"`
	}{r.PathValue("id"), []uploaded{}}
	put := func(name string, content io.Reader) error {
		f, err := c.write(sb.GetID(), name, content)
		if err == nil {
			out.Files = append(out.Files, f)
		}
		return err
	}
	if media, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); media != "multipart/form-data" {
		if err := put(r.URL.Query().Get("filename"), r.Body); err != nil {
			return err
		}
		return answer(w, http.StatusOK, out)
	}
	form, err := r.MultipartReader()
	if err != nil {
		return errs.New(errs.InvalidArgument, "the form cannot be read: %w", err)
	}
	for {
		part, err := form.NextPart()
		if err == io.EOF {
			break
		}
		if err != nil {
			return errs.New(errs.InvalidArgument, "the form cannot be read: %w", err)
		}
		if part.FileName() == "" {
			continue // a field
		}
		if err := put(part.FileName(), part); err != nil {
			return err
		}
	}
	if len(out.Files) == 0 {
		return errs.New(errs.InvalidArgument, "the form has no file")
	}
	return answer(w, http.StatusOK, out)
}

func (c *call) write(sid id.Sandbox, name string, content io.Reader) (uploaded, error) {
	if name == "" || name == "." || name == ".." || name != path.Base(name) {
		return uploaded{}, errs.New(errs.InvalidArgument, "%q is no name of a file", name).
			WithHint("send a form with a file, or state the query parameter filename")
	}
	info, err := api.WriteFile(c.ctx, c.files, &sandbox.WriteFileRequest{Sandbox: sid, Path: name}, content)
	if err != nil {
		return uploaded{}, err
	}
	return uploaded{name, info.SizeBytes}, nil
}

func download(c *call, w http.ResponseWriter, r *http.Request) error {
	sb, err := c.find(r.PathValue("id"))
	if err != nil {
		return err
	}
	name := r.PathValue("filename")
	if name == "" {
		return errs.New(errs.InvalidArgument, "the name of the file is missing")
	}
	st, err := c.files.Read(c.ctx, &sandbox.ReadFileRequest{Sandbox: sb.GetID(), Path: name})
	if err != nil {
		return err
	}
	defer st.Close()
	first, err := st.Recv()
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Disposition", mime.FormatMediaType("attachment", map[string]string{"filename": path.Base(name)}))
	api.SendFile(w, first, st)
	return nil
}
