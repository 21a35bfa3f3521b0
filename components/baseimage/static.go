package baseimage

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"miren.dev/runtime/pkg/errs"
)

// static is our file server and nothing else: no shell, no libraries.
func (s *Store) static() (*recipe, error) {
	file := filepath.Join(s.cfg.BinDir, "static-server")
	f, err := os.Open(file)
	if err != nil {
		return nil, errs.New(errs.FailedPrecondition, "the static file server is not installed: %w", err).
			WithHint("run `make bin/runtime`")
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return nil, errs.New(errs.Unavailable, "read the static file server: %w", err)
	}
	return &recipe{
		name: "static", version: "1", inputs: []string{hex.EncodeToString(h.Sum(nil))},
		env: []string{searchPath}, workdir: "/site", cmd: []string{"/static-server", "/site"},
		make: func(_ context.Context, b *builder) error {
			passwd := fmt.Sprintf("root:x:0:0:root:/root:/sbin/nologin\n%s:x:%d:%d::/home/%s:/sbin/nologin\n", userName, userID, userID, userName)
			group := fmt.Sprintf("root:x:0:\n%s:x:%d:\n", userName, userID)
			return b.layer(func(tw *tar.Writer) error {
				for _, d := range []struct {
					name string
					mode int64
				}{{"etc", 0o755}, {"home", 0o755}, {"site", 0o755}, {"tmp", 0o1777}} {
					if err := putDir(tw, d.name, d.mode); err != nil {
						return err
					}
				}
				if err := putHome(tw); err != nil {
					return err
				}
				if err := put(tw, "etc/passwd", 0o644, int64(len(passwd)), strings.NewReader(passwd)); err != nil {
					return err
				}
				if err := put(tw, "etc/group", 0o644, int64(len(group)), strings.NewReader(group)); err != nil {
					return err
				}
				return putFile(tw, "static-server", 0o755, file)
			})
		},
	}, nil
}
