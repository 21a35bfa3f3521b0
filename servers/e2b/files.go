package e2b

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"time"

	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
)

func newWatcherID() string { return rand.Text() }

// fileGuest returns the sandbox whose files a request reads or writes. A request
// with a signature needs no token, and may come without the sandbox's name.
func (s *Server) fileGuest(r *http.Request, operation string) (*guest, error) {
	q := r.URL.Query()
	_, name := target(r)
	if signature := q.Get("signature"); signature != "" {
		sid, err := s.signer(r.Context(), name, q, operation)
		if err != nil {
			return nil, err
		}
		return s.guestOf(r.Context(), publicID(sid), q.Get("username"))
	}
	if name == "" {
		return nil, errs.New(errs.Unauthenticated, "the request names no sandbox and has no signature")
	}
	g, err := s.guest(r)
	if err != nil {
		return nil, err
	}
	g.user = cmp.Or(q.Get("username"), g.user)
	return g, nil
}

// signer returns the sandbox with whose token a request was signed. Without a
// name those of E2B's clients are tried.
func (s *Server) signer(ctx context.Context, name string, q url.Values, operation string) (id.Sandbox, error) {
	expires := q.Get("signature_expiration")
	if expires != "" {
		if n, err := strconv.ParseInt(expires, 10, 64); err != nil || time.Now().Unix() > n {
			return "", errs.New(errs.Unauthenticated, "the signature has expired")
		}
	}
	signed := func(sid id.Sandbox) bool {
		text := fmt.Sprintf("%s:%s:%s:%s", q.Get("path"), operation, q.Get("username"), s.token(sid))
		if expires != "" {
			text += ":" + expires
		}
		sum := sha256.Sum256([]byte(text))
		want := "v1_" + base64.RawStdEncoding.EncodeToString(sum[:])
		return subtle.ConstantTimeCompare([]byte(want), []byte(q.Get("signature"))) == 1
	}
	errSignature := errs.New(errs.Unauthenticated, "the signature is not valid")
	if len(q.Get("signature")) != len("v1_")+base64.RawStdEncoding.EncodedLen(sha256.Size) {
		return "", errSignature // no store is read for it
	}
	if name != "" {
		if sid := sandboxID(name); signed(sid) {
			return sid, nil
		}
		return "", errSignature
	}
	// Anybody can ask for this, so one search is made at a time, among the sandboxes
	// that such a URL can be for.
	select {
	case s.searches <- struct{}{}:
		defer func() { <-s.searches }()
	case <-ctx.Done():
		return "", ctx.Err()
	}
	for _, phase := range livePhases {
		query := entity.Where(sandbox.SandboxAttrPhase, phase)
		query.Kind = sandbox.KindSandbox
		for {
			p, err := s.guests.store.List(ctx, query)
			if err != nil {
				return "", err
			}
			for i := range p.Records {
				if sid := id.Sandbox(p.Records[i].ID); p.Records[i].Labels[labelTemplate] != "" && signed(sid) {
					return sid, nil
				}
			}
			if query.Cursor = p.Cursor; query.Cursor == "" {
				break
			}
		}
	}
	return "", errSignature
}

// livePhases are those of sandboxes whose files can be used, or will be.
var livePhases = []sandbox.SandboxPhase{
	sandbox.SandboxPhaseRunning, sandbox.SandboxPhaseCreating, sandbox.SandboxPhasePausing, sandbox.SandboxPhasePaused,
}

// download sends the content of a file.
func (s *Server) download(w http.ResponseWriter, r *http.Request) {
	g, err := s.fileGuest(r, "read")
	if err != nil {
		fail(w, err)
		return
	}
	if err := g.send(r.Context(), w, g.path(r.URL.Query().Get("path"))); err != nil {
		fail(w, s.explain(r.Context(), g.sb.GetID(), err))
	}
}

// send sends a file. It returns an error if nothing was sent.
func (g *guest) send(ctx context.Context, w http.ResponseWriter, p string) error {
	st, err := g.files.Read(ctx, &sandbox.ReadFileRequest{Sandbox: g.sb.GetID(), Path: p, User: g.user})
	if err != nil {
		return err
	}
	defer st.Close()
	first, err := st.Recv()
	if err != nil {
		return err
	}
	// A file may change while it is read, and files of procfs have no size: the
	// length is stated if the file proves to be empty only.
	m, err := st.Recv()
	if err != nil && err != io.EOF {
		return err
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Disposition", mime.FormatMediaType("attachment", map[string]string{"filename": path.Base(p)}))
	w.Header().Set("Last-Modified", first.Info.ModifiedAt.UTC().Format(http.TimeFormat))
	if err == io.EOF {
		answer(w, http.StatusOK, nil)
		return nil
	}
	for err == nil {
		if _, werr := w.Write(m.Data); werr != nil {
			return nil // the client is gone
		}
		m, err = st.Recv()
	}
	if err != io.EOF {
		panic(http.ErrAbortHandler) // so that the client does not take the part for the whole
	}
	return nil
}

// written describes a file that was written.
type written struct {
	Name     string            `json:"name"`
	Type     string            `json:"type"`
	Path     string            `json:"path"`
	Metadata map[string]string `json:"metadata,omitempty"`
}

// upload writes the files of a request: one in the body, or the parts "file" of a form,
// whose file names are paths.
func (s *Server) upload(w http.ResponseWriter, r *http.Request) {
	g, err := s.fileGuest(r, "write")
	if err != nil {
		fail(w, err)
		return
	}
	files, err := g.receive(r)
	if err != nil {
		fail(w, s.explain(r.Context(), g.sb.GetID(), err))
		return
	}
	answer(w, http.StatusOK, files)
}

func (g *guest) receive(r *http.Request) ([]written, error) {
	metadata, err := uploadMetadata(r.Header)
	if err != nil {
		return nil, err
	}
	body, err := plainBody(r)
	if err != nil {
		return nil, err
	}
	r.Body = body
	to := r.URL.Query().Get("path")
	if kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); kind == "application/octet-stream" {
		if to == "" {
			return nil, errs.New(errs.InvalidArgument, "path is missing")
		}
		f, err := g.write(r.Context(), to, r.Body, metadata)
		return []written{f}, err
	}
	parts, err := r.MultipartReader()
	if err != nil {
		return nil, errs.New(errs.InvalidArgument, "the body is neither application/octet-stream nor a form: %w", err)
	}
	files := []written{}
	for {
		part, err := parts.NextRawPart()
		if err == io.EOF {
			return files, nil
		}
		if err != nil {
			return nil, errs.New(errs.InvalidArgument, "read the form: %w", err)
		}
		if part.FormName() != "file" {
			continue
		}
		// FileName would drop the directories.
		_, params, err := mime.ParseMediaType(part.Header.Get("Content-Disposition"))
		if err != nil {
			return nil, errs.New(errs.InvalidArgument, "a part of the form: %w", err)
		}
		p := cmp.Or(to, params["filename"])
		if p == "" {
			return nil, errs.New(errs.InvalidArgument, "a part of the form has no file name")
		}
		f, err := g.write(r.Context(), p, part, metadata)
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
}

// write writes a file, whose metadata replaces that of the file that was there.
func (g *guest) write(ctx context.Context, p string, from io.Reader, metadata map[string]string) (written, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // a file that is not complete is removed
	p = g.path(p)
	yes := true
	st, err := g.files.Write(ctx, &sandbox.WriteFileRequest{Sandbox: g.sb.GetID(), Path: p, User: g.user, Parents: &yes})
	if err != nil {
		return written{}, err
	}
	defer st.Close()
	body := &content{Reader: from}
	_, err = io.Copy(st.Writer(), body)
	if body.err != nil {
		return written{}, errs.New(errs.InvalidArgument, "read the content of %s: %w", p, body.err)
	}
	if err == nil {
		err = st.CloseSend()
	}
	// What ended the call says the answer, not what writing to it returned.
	if _, rerr := st.Recv(); rerr != nil {
		return written{}, rerr
	}
	if err == nil {
		err = g.setMetadata(ctx, p, metadata)
	}
	return written{path.Base(p), "file", p, metadata}, err
}

// content remembers the error of a reader.
type content struct {
	io.Reader
	err error
}

func (s *content) Read(b []byte) (int, error) {
	n, err := s.Reader.Read(b)
	if err != nil && err != io.EOF {
		s.err = err
	}
	return n, err
}
