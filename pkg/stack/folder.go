package stack

import (
	"io/fs"
	"path"
	"slices"
	"strings"

	"miren.dev/runtime/pkg/appconfig"
	"miren.dev/runtime/pkg/errs"
)

// Load reads the configuration of the app in a folder of a source, as Detect wants it; "" is the source itself. A
// folder is a workspace of Node.js: its app.toml and its Procfile are the app's, and the lock file is the source's.
// InvalidArgument when it is none.
func Load(fsys fs.FS, folder string) (*appconfig.Config, error) {
	if folder == "" {
		return appconfig.Load(fsys)
	}
	if !fs.ValidPath(folder) || !(&source{FS: fsys}).has(path.Join(folder, "package.json")) {
		return nil, errs.New(errs.InvalidArgument, "the folder %s of the source has no package.json", folder)
	}
	sub, err := fs.Sub(fsys, folder)
	if err != nil {
		return nil, errs.New(errs.InvalidArgument, "the folder %s of the source: %w", folder, err)
	}
	cfg, err := appconfig.Load(sub)
	if err != nil {
		return nil, err
	}
	if cfg.File != "" {
		cfg.File = path.Join(folder, cfg.File)
	}
	cfg.Build.Package, cfg.Build.Stack = folder, "node"
	return cfg, nil
}

// MaxAbove bounds how far above a workspace its lock file is looked for, in folders.
const MaxAbove = 6

// FindRoot returns the folder of a tree that is uploaded for the app in another folder of it: that folder itself, or for a
// workspace without a lock file the nearest one above that has it. Paths have slashes, and "." is the tree.
func FindRoot(tree fs.FS, folder string) string {
	sub, err := fs.Sub(tree, folder)
	if err != nil || !needsRoot(sub) {
		return folder
	}
	above := folder
	for range MaxAbove {
		if above == "." {
			break
		}
		above = path.Dir(above)
		if sub, err = fs.Sub(tree, above); err == nil && hasWorkspace(sub, Below(above, folder)) {
			return above
		}
	}
	return folder
}

// Below returns the path of a folder from one above it, both of a tree.
func Below(above, folder string) string {
	if above == "." {
		return folder
	}
	return strings.TrimPrefix(folder, above+"/")
}

// needsRoot says whether a folder could be a workspace whose lock file is in a folder above it: it has a package.json,
// and nothing says how it is built by itself.
func needsRoot(fsys fs.FS) bool {
	s := &source{FS: fsys}
	if !s.has("package.json") || s.has("Dockerfile") {
		return false
	}
	cfg, err := appconfig.Load(fsys)
	return err == nil && cfg.Build.Dockerfile == "" && cfg.Build.Package == "" && (cfg.Build.Stack == "" || cfg.Build.Stack == "node") && s.lockFile() == ""
}

// hasWorkspace says whether a source has a lock file and names a folder among its workspaces.
func hasWorkspace(fsys fs.FS, folder string) bool {
	s := &source{FS: fsys, cfg: &appconfig.Config{}}
	if s.lockFile() == "" || !s.has("package.json") {
		return false
	}
	root, err := s.readPackage(".")
	return err == nil && slices.Contains(s.workspaces(root), strings.TrimSuffix(folder, "/"))
}

// lockFile is the lock file of a package manager of Node.js; empty for none.
func (s *source) lockFile() string {
	for _, m := range []manager{npmManager, pnpmManager, yarnManager, bunManager} {
		if f := s.first(m.locks...); f != "" {
			return f
		}
	}
	return ""
}
