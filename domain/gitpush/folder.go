package gitpush

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"miren.dev/runtime/pkg/appconfig"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/stack"
)

// appSource is the source of an app in the files of a commit.
type appSource struct {
	dir    string // to upload
	name   string // of dir in messages
	folder string // of a workspace whose lock file is above it: its path below dir; else empty
	git    appconfig.Git
}

// findSource finds the source of an app in the folder of a commit: in the folder that the push names, else in that which
// app.toml at the root names for the app, else at the root. [git] of the folder's own app.toml counts then.
func findSource(dir, appName, folder string) (appSource, error) {
	root, err := os.OpenRoot(dir) // a link to a file of the server is not read
	if err != nil {
		return appSource{}, errs.New(errs.Unavailable, "open the source: %w", err)
	}
	defer root.Close()
	said := "the push option folder"
	if folder == "" {
		cfg, err := appconfig.Load(root.FS())
		if err != nil {
			return appSource{}, err
		}
		if folder = cfg.Git.Folders[appName]; folder == "" || folder == "." {
			return appSource{dir: dir, git: cfg.Git}, nil
		}
		said = "git.folders." + appName + " in " + cfg.File
	}
	if err := checkFolder(root, folder); err != nil {
		return appSource{}, errs.Wrap(err, "%s", said)
	}
	sub, err := fs.Sub(root.FS(), folder)
	if err != nil {
		return appSource{}, errs.New(errs.InvalidArgument, "%s: %w", said, err)
	}
	cfg, err := appconfig.Load(sub)
	if err != nil {
		return appSource{}, errs.Wrap(err, "folder %s", folder)
	}
	src := appSource{dir: filepath.Join(dir, filepath.FromSlash(folder)), git: cfg.Git}
	if above := stack.FindRoot(root.FS(), folder); above != folder {
		src.name = "the folder " + above
		if above == "." {
			src.name = "the whole commit"
		}
		src.dir, src.folder = filepath.Join(dir, filepath.FromSlash(above)), stack.Below(above, folder)
	}
	return src, nil
}

// checkFolder refuses a path that is no folder of the commit. A link is none: it may lead out of the commit.
func checkFolder(root *os.Root, folder string) error {
	at := ""
	for part := range strings.SplitSeq(folder, "/") {
		at = filepath.Join(at, part)
		info, err := root.Lstat(at)
		if err != nil || !info.IsDir() {
			return errs.New(errs.InvalidArgument, "the commit has no folder %s", folder).WithHint("give the path of a folder below the root of the repository, which is no link")
		}
	}
	return nil
}
