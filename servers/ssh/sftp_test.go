package sshserver

import (
	"context"
	"os"
	"testing"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/pkg/errs"
)

// longList answers with more files than it is asked for, as a hostile sandbox or runner can.
type longList struct{ sandbox.FilesClient }

func (longList) List(context.Context, *sandbox.ListFilesRequest) (*sandbox.ListFilesResponse, error) {
	return &sandbox.ListFilesResponse{Files: make([]sandbox.FileInfo, 3), More: true}, nil
}

// A list that is longer than it may be fails its request. The SFTP server makes it in a goroutine of its own, where a
// panic would end the whole server.
func TestListLongerThanItMayBe(t *testing.T) {
	d := &directory{f: &sftpFiles{ctx: t.Context(), files: longList{}}, path: "/"}
	if n, err := d.ListAt(make([]os.FileInfo, 2), 0); n != 0 || !errs.Is(err, errs.Unavailable) {
		t.Errorf("%d, %v", n, err)
	}
	if n, err := d.ListAt(make([]os.FileInfo, 3), 0); n != 3 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
}
