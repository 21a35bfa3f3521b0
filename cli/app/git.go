package app

import (
	"context"
	"os/exec"
	"strings"
	"time"

	"miren.dev/runtime/api/app"
)

// gitInfo says where the source comes from, nil if it is in no repository or
// there is no git. Only the folder itself counts for dirty.
func gitInfo(ctx context.Context, dir string) *app.GitInfo {
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
	info := &app.GitInfo{Commit: commit}
	if branch, ok := git("symbolic-ref", "--short", "-q", "HEAD"); ok {
		info.Branch = branch
	}
	if status, ok := git("status", "--porcelain", "--", "."); ok {
		info.Dirty = status != ""
	}
	return info
}
