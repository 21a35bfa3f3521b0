package sshserver

import (
	"cmp"
	"context"
	"io"
	"strings"
	"time"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/pkg/errs"
)

// GitUser is the user name of clients that push to apps. A sandbox of that name is
// reached as PROJECT/git.
const GitUser = "git"

// errPushOnly refuses everything else that such a client tries.
var errPushOnly = errs.New(errs.InvalidArgument, "the user %s is for git push; another user name is a sandbox", GitUser)

// awaitPush ends the connection of a client that begins no push.
func (c *conn) awaitPush() {
	c.refused = errPushOnly
	time.AfterFunc(refusalTime, func() {
		if !c.pushed.Load() {
			_ = c.ssh.Close()
		}
	})
}

// parsePush returns project and name of the app that a command pushes to. The project is
// empty if the command names none.
func parsePush(command string) (project, name string, err error) {
	program, path, _ := strings.Cut(strings.Replace(command, "git receive-pack", "git-receive-pack", 1), " ")
	switch {
	case program == "git-upload-pack" || program == "git-upload-archive" || strings.HasPrefix(command, "git upload-"):
		return "", "", errs.New(errs.FailedPrecondition, "an app is pushed to, and cannot be fetched or cloned from")
	case program != "git-receive-pack":
		return "", "", errPushOnly
	}
	path = strings.TrimSuffix(strings.Trim(strings.Trim(strings.TrimSpace(path), "'"), "/"), ".git")
	project, name, ok := strings.Cut(path, "/")
	if !ok {
		project, name = "", path
	}
	if name == "" || strings.ContainsAny(name, "/'\\ ") {
		return "", "", errs.New(errs.InvalidArgument, "%q is no path of an app: it is APP.git or PROJECT/APP.git", path)
	}
	return project, name, nil
}

// startPush serves a push. It reports false for a second start.
func (s *session) startPush(ctx context.Context, command string) bool {
	if s.started || s.tty {
		return false
	}
	s.started = true
	s.c.pushed.Store(true)
	s.begin = func() { s.wg.Go(func() { s.push(ctx, command) }) }
	return true
}

func (s *session) push(ctx context.Context, command string) {
	project, name, err := parsePush(command)
	if err != nil {
		s.fail(err)
		return
	}
	st, err := app.NewDeploysClient(s.c.rpc).Push(ctx, &app.AppRequest{Project: cmp.Or(project, s.c.login.project), App: name})
	if err != nil {
		s.fail(err)
		return
	}
	defer st.Close()
	s.c.logger.Info("git push", "project", project, "app", name)
	s.wg.Go(func() { // ends with the channel
		if _, err := io.Copy(st.Writer(), s.ch); err == nil {
			_ = st.CloseSend() // a push that has ended shows below
		}
	})
	if _, err := io.Copy(s.ch, st.Reader()); err != nil {
		s.fail(err)
		return
	}
	s.exit(0)
}
