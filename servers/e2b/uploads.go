package e2b

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/pkg/atomicfile"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/source"
)

// Bounds of uploads.
const (
	uploadTime = time.Hour // in which a client uploads, and for which an upload is kept
	maxUploads = 8 << 30   // bytes of all that are kept
	roomEvery  = 16 << 20  // bytes of an upload after which there must still be room
)

// uploads are archives that clients sent and that a build may need, in a folder.
type uploads struct {
	dir string
	max int64      // bytes of all that are kept
	mu  sync.Mutex // of sweeps
}

// file returns the file of an upload of a project.
func (u *uploads) file(project, hash string) string {
	sum := sha256.Sum256([]byte(project + "\x00" + hash))
	return filepath.Join(u.dir, hex.EncodeToString(sum[:]))
}

// uploadSignature returns what permits an upload until a time.
func (s *Server) uploadSignature(project, hash, until string) string {
	h := hmac.New(sha256.New, s.cfg.Key)
	fmt.Fprintf(h, "e2b upload\x00%s\x00%s\x00%s", project, hash, until)
	return hex.EncodeToString(h.Sum(nil))
}

// uploadLink tells a client whether an upload is there, and where to send it.
func (s *Server) uploadLink(ctx context.Context, c *caller, _ http.ResponseWriter, r *http.Request) (int, any, error) {
	hash := r.PathValue("hash")
	if !filesHash.MatchString(hash) {
		return 0, nil, errs.New(errs.InvalidArgument, "%q is no hash of files", hash)
	}
	if _, _, err := c.planUpload(ctx, &source.Manifest{}); err != nil { // the caller may not upload
		return 0, nil, err
	}
	now := time.Now()
	err := os.Chtimes(s.uploads.file(c.project, hash), now, now) // it is about to be used
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0, nil, errs.New(errs.Unavailable, "look for the upload: %w", err)
	}
	until := strconv.FormatInt(now.Add(uploadTime).Unix(), 10)
	to := url.URL{
		Scheme: "http", Host: r.Host, Path: "/templates/files/" + hash,
		RawQuery: url.Values{"project": {c.project}, "until": {until}, "signature": {s.uploadSignature(c.project, hash, until)}}.Encode(),
	}
	if r.TLS != nil || r.Header.Get("X-Forwarded-Proto") == "https" {
		to.Scheme = "https"
	}
	return http.StatusCreated, map[string]any{"present": err == nil, "url": to.String()}, nil
}

// receiveUpload keeps an upload. Its URL is the permission.
func (s *Server) receiveUpload(w http.ResponseWriter, r *http.Request) {
	q, hash := r.URL.Query(), r.PathValue("hash")
	until, err := strconv.ParseInt(q.Get("until"), 10, 64)
	want := s.uploadSignature(q.Get("project"), hash, q.Get("until"))
	if err != nil || time.Now().Unix() > until || !hmac.Equal([]byte(q.Get("signature")), []byte(want)) {
		fail(w, errs.New(errs.Unauthenticated, "the URL is not valid, or its time is over: build the template again"))
		return
	}
	if err := s.uploads.keep(q.Get("project"), hash, http.MaxBytesReader(w, r.Body, source.DefaultLimits.Bytes), r.ContentLength); err != nil {
		fail(w, err)
		return
	}
	answer(w, http.StatusOK, nil)
}

// keep writes an upload, of size bytes, -1: not known.
func (u *uploads) keep(project, hash string, from io.Reader, size int64) error {
	if err := u.sweep(size); err != nil {
		return err
	}
	f, err := atomicfile.Create(u.file(project, hash), 0o600, atomicfile.Volatile) // a client sends it again
	if err != nil {
		return errs.New(errs.Unavailable, "keep the upload: %w", err)
	}
	defer f.Abort()
	for {
		// Other uploads arrive at the same time, and this one may have stated no size.
		if _, err := io.CopyN(f, from, roomEvery); err == io.EOF {
			break
		} else if err != nil {
			return errs.New(errs.InvalidArgument, "read the upload: %w", err)
		}
		if err := u.sweep(0); err != nil {
			return err
		}
	}
	if err := f.Commit(); err != nil {
		return errs.New(errs.Unavailable, "keep the upload: %w", err)
	}
	return nil
}

// sweep removes what no build needs any more, and makes the folder. It fails if
// there is no room for size bytes more.
func (u *uploads) sweep(size int64) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if err := os.MkdirAll(u.dir, 0o700); err != nil {
		return errs.New(errs.Unavailable, "folder of uploads: %w", err)
	}
	entries, err := os.ReadDir(u.dir)
	if err != nil {
		return errs.New(errs.Unavailable, "folder of uploads: %w", err)
	}
	total := max(size, 0)
	for _, e := range entries {
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil && time.Since(info.ModTime()) > uploadTime {
			err = os.RemoveAll(filepath.Join(u.dir, e.Name()))
		} else if err == nil {
			total += info.Size()
		}
		if err != nil {
			return errs.New(errs.Unavailable, "folder of uploads: %w", err)
		}
	}
	if total > u.max {
		return errs.New(errs.ResourceExhausted, "the uploads of the last %s have more than %d bytes: try again later", uploadTime, u.max)
	}
	return nil
}

// send makes uploads the source of a build, each in a folder with its hash as
// name, and returns the digest of that; "" without uploads. FailedPrecondition if
// one is not there.
func (u *uploads) send(ctx context.Context, c *caller, hashes []string) (string, error) {
	if len(hashes) == 0 {
		return "", nil
	}
	if err := u.sweep(0); err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp(u.dir, "source-")
	if err != nil {
		return "", errs.New(errs.Unavailable, "unpack the uploads: %w", err)
	}
	defer os.RemoveAll(dir) // what remains is swept
	from, err := source.NewUnpacked(dir, source.Limits{})
	if err != nil {
		return "", err
	}
	defer from.Close()
	for _, hash := range hashes {
		f, err := os.Open(u.file(c.project, hash))
		if errors.Is(err, fs.ErrNotExist) {
			return "", errs.New(errs.FailedPrecondition, "the files of a copy step were not uploaded: build the template again")
		}
		if err != nil {
			return "", errs.New(errs.Unavailable, "read an upload: %w", err)
		}
		err = from.Add(hash, f)
		f.Close()
		if err != nil {
			return "", err
		}
	}
	tree, err := from.Tree()
	if err != nil {
		return "", err
	}
	return c.upload(ctx, tree)
}

func (c *caller) planUpload(ctx context.Context, m *source.Manifest) (string, []source.Digest, error) {
	encoded, err := m.Encode()
	if err != nil {
		return "", nil, err
	}
	plan, err := c.deploys.PlanUpload(ctx, &app.PlanUploadRequest{Manifest: encoded})
	if err != nil {
		return "", nil, err
	}
	var missing []source.Digest
	for _, d := range plan.Missing {
		missing = append(missing, source.Digest(d))
	}
	return plan.Source, missing, nil
}

// upload sends the contents of a source that the server lacks, and returns its
// digest.
func (c *caller) upload(ctx context.Context, tree *source.Tree) (string, error) {
	digest, missing, err := c.planUpload(ctx, tree.Manifest)
	if err != nil || len(missing) == 0 {
		return digest, err
	}
	st, err := c.deploys.Upload(ctx, &app.UploadRequest{Source: digest})
	if err != nil {
		return "", err
	}
	defer st.Close()
	if err = tree.WritePack(ctx, st.Writer(), missing, nil); err == nil {
		err = st.CloseSend()
	}
	// If the server stopped reading, its answer has the reason.
	if _, rerr := st.Recv(); rerr != nil && rerr != io.EOF {
		return "", rerr
	}
	return digest, err
}
