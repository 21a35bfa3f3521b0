package server

import (
	"context"
	"os"

	"miren.dev/runtime/pkg/gitrepo"
	"miren.dev/runtime/pkg/sysuser"
)

// gitUser is the user that git runs as, created at the first push.
const gitUser = "runtime-git"

// openPushes opens the repositories of git pushes. What clients push is read by git as a
// user of its own if this process is root, otherwise as the user of this process.
func (c *control) openPushes(ctx context.Context) (*gitrepo.Repos, error) {
	u := sysuser.Current()
	if os.Geteuid() == 0 {
		var err error
		if u, err = sysuser.Ensure(ctx, gitUser, "runtime's git pushes"); err != nil {
			return nil, err
		}
	}
	return gitrepo.New(gitrepo.Config{Dir: c.m.in.State("git"), User: u})
}
