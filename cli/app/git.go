package app

import (
	"context"
	"os/exec"
	"strings"
	"time"

	"miren.dev/runtime/api/app"
)

// gitInfo returns the commit of the source, nil if the folder is in no
// repository or git is not installed. Only changes in the folder make it dirty. The
// branch is what HEAD is on, or the given one.
func gitInfo(ctx context.Context, dir, branch string) *app.GitInfo {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	git := func(args ...string) (string, bool) {
		cmd := exec.CommandContext(ctx, "git", append([]string{"--no-optional-locks", "-C", dir}, args...)...)
		out, err := cmd.Output()
		return strings.TrimSpace(string(out)), err == nil
	}
	commit, ok := git("rev-parse", "--verify", "HEAD")
	if !ok {
		return nil
	}
	info := &app.GitInfo{Commit: commit, Branch: branch}
	if on, ok := git("symbolic-ref", "--short", "-q", "HEAD"); ok {
		info.Branch = on
	}
	if status, ok := git("status", "--porcelain", "--", "."); ok {
		info.Dirty = status != ""
	}
	return info
}
