package api

import (
	"context"
	"io"
	"net/http"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/pkg/errs"
)

// WriteFile writes the content of a request to a file of a sandbox. Nothing is
// written if the content ends early: InvalidArgument.
func WriteFile(ctx context.Context, files sandbox.FilesClient, req *sandbox.WriteFileRequest, content io.Reader) (*sandbox.FileInfo, error) {
	wctx, cancel := context.WithCancel(ctx)
	defer cancel()
	st, err := files.Write(wctx, req)
	if err != nil {
		return nil, err
	}
	defer st.Close()
	copied := make(chan error, 1)
	go func() {
		_, err := io.Copy(st.Writer(), content)
		if err != nil {
			cancel() // a part of the content makes no file
		} else {
			err = st.CloseSend()
		}
		copied <- err
	}()
	info, err := st.Recv()
	cancel()
	cerr := <-copied
	switch {
	case err == nil:
		return info, nil
	case errs.Is(err, errs.Canceled) && cerr != nil:
		return nil, errs.New(errs.InvalidArgument, "the content of the request ended early: %w", cerr)
	}
	return nil, err
}

// SendFile answers with the content of a file, of which the first message was
// received. If it cannot be read to its end, the connection is broken off.
func SendFile(w http.ResponseWriter, first *sandbox.ReadFileOutput, st interface {
	Recv() (*sandbox.ReadFileOutput, error)
}) {
	if first.Info != nil {
		w.Header().Set("Last-Modified", first.Info.ModifiedAt.UTC().Format(http.TimeFormat))
	}
	for m := first; ; {
		if len(m.Data) > 0 {
			if _, err := w.Write(m.Data); err != nil {
				return
			}
		}
		var err error
		if m, err = st.Recv(); err == io.EOF {
			return
		} else if err != nil {
			panic(http.ErrAbortHandler) // the client must not take a part for the whole
		}
	}
}
