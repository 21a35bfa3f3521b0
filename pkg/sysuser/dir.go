package sysuser

import (
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"miren.dev/runtime/pkg/errs"
)

// CanEnter returns an error if the user cannot reach what is in dir, because it
// may not search dir or a directory above. What this process's own user can
// enter shows by itself.
func (u User) CanEnter(dir string) error {
	if !u.Other() {
		return nil
	}
	for ; ; dir = filepath.Dir(dir) {
		st, err := os.Stat(dir)
		if err != nil {
			return errs.New(errs.FailedPrecondition, "look at directory: %w", err)
		}
		if u.UID != 0 && st.Mode().Perm()&0o001 == 0 && int(st.Sys().(*syscall.Stat_t).Uid) != u.UID {
			return errs.New(errs.FailedPrecondition, "user %s cannot enter %s (mode %s)", u.Name, dir, st.Mode()).
				WithHint("chmod o+x %s, or choose another --state-dir", dir)
		}
		if dir == "/" {
			return nil
		}
	}
}

// Own makes dir a directory of the user that nobody else may use (0700), and
// gives the user the files in it. It takes over what another user owned, such
// as root before an upgrade, but no file that someone else than the owner of the
// directory has put there, nor one that has a second name elsewhere. It may be
// repeated after a crash.
func (u User) Own(dir string) error {
	if err := u.own(dir); err != nil {
		return errs.New(errs.FailedPrecondition, "give %s to user %s: %w", dir, u.Name, err)
	}
	return nil
}

func (u User) own(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	if err := root.Chmod(".", 0o700); err != nil {
		return err
	}
	st, err := root.Stat(".")
	if err != nil {
		return err
	}
	owner := st.Sys().(*syscall.Stat_t).Uid
	if int(owner) == u.UID {
		return nil
	}
	files, err := fs.ReadDir(root.FS(), ".")
	if err != nil {
		return err
	}
	for _, f := range files {
		info, err := root.Lstat(f.Name())
		if err != nil {
			return err
		}
		if s := info.Sys().(*syscall.Stat_t); !info.Mode().IsRegular() || s.Uid != owner || s.Nlink != 1 {
			continue
		}
		if err := root.Lchown(f.Name(), u.UID, u.GID); err != nil {
			return err
		}
	}
	// Last, since the owner of the directory tells that the files have theirs.
	return root.Chown(".", u.UID, u.GID)
}
