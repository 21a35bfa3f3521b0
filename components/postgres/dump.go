package postgres

import (
	"bytes"
	"context"
	"io"
	"os/exec"
	"path/filepath"

	"miren.dev/runtime/pkg/errs"
)

// Dump writes the database as it is at one moment, in the custom format of pg_dump.
// Restore reads it, also that of an older version of PostgreSQL.
func (s *Server) Dump(ctx context.Context, w io.Writer) error {
	return s.tool(ctx, nil, w, "pg_dump", "--format=custom", "--compress=0", "--no-owner", "--dbname="+s.URL())
}

// Restore fills the database, which must be empty, with a dump: all of it, or after
// an error nothing.
func (s *Server) Restore(ctx context.Context, r io.Reader) error {
	return s.tool(ctx, r, nil, "pg_restore", "--exit-on-error", "--single-transaction", "--no-owner", "--dbname="+s.URL())
}

// tool runs a program of the cluster's version. The URL in its arguments has no
// password.
func (s *Server) tool(ctx context.Context, in io.Reader, out io.Writer, name string, args ...string) error {
	bin, err := findBinaries(ctx, s.cfg.BinDir, s.cfg.data())
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, filepath.Join(bin, name), args...)
	var said bytes.Buffer
	cmd.Env = []string{"PATH=/usr/bin:/bin", "LC_ALL=C", "TZ=UTC"}
	cmd.Dir, cmd.Stdin, cmd.Stdout, cmd.Stderr = "/", in, out, &said
	if err := cmd.Run(); err != nil {
		return errs.New(errs.Unavailable, "%s: %w: %s", name, err, lastLines(said.String(), 5)).
			WithHint("%s comes with the client programs of PostgreSQL (Debian, Ubuntu: apt install postgresql-client)", name)
	}
	return nil
}
