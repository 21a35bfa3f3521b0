package gitpush

import (
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/pkg/appconfig"
	"miren.dev/runtime/pkg/errs"
)

// The names of push options, which are those of the flags of `r deploy`, and folder.
const (
	optionCanary  = "canary"
	optionFolder  = "folder"
	optionHost    = "host"
	optionPreview = "preview"
	optionTTL     = "ttl"
)

// options are what the options of `git push -o` say about one push.
type options struct {
	canary  int64         // percentage of the requests; 0: all
	folder  string        // below the root, with slashes; "": as app.toml says
	preview string        // name; "": as the branch says
	host    string        // of the preview; "": the default
	ttl     time.Duration // of the preview; 0: the default
}

// parseOptions reads push options. InvalidArgument for one that does not exist, is given twice or has a wrong value.
func parseOptions(given []string) (options, error) {
	var o options
	texts := map[string]string{}
	names := []string{optionCanary, optionPreview, optionTTL, optionHost, optionFolder}
	for _, g := range given {
		name, value, _ := strings.Cut(g, "=")
		_, twice := texts[name]
		switch {
		case !slices.Contains(names, name):
			return o, errs.New(errs.InvalidArgument, "there is no push option %q", name).WithHint("push options are %s, written as -o NAME=VALUE", strings.Join(names, ", "))
		case twice:
			return o, errs.New(errs.InvalidArgument, "the push option %s is given twice", name)
		case value == "":
			return o, errs.New(errs.InvalidArgument, "the push option %s has no value", name).WithHint("write it as -o %s=VALUE", name)
		}
		texts[name] = value
	}
	o.preview, o.host = texts[optionPreview], texts[optionHost]
	if text, ok := texts[optionCanary]; ok {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n < 1 || n > 99 {
			return o, errs.New(errs.InvalidArgument, "the push option canary is %q, but must be a percentage from 1 to 99", text)
		}
		o.canary = n
	}
	if text, ok := texts[optionTTL]; ok {
		d, err := time.ParseDuration(text)
		if err != nil || d == 0 {
			return o, errs.New(errs.InvalidArgument, `the push option ttl is %q, which is no duration such as "24h"`, text)
		}
		o.ttl = d
	}
	if text, ok := texts[optionFolder]; ok {
		o.folder = path.Clean(text)
		if path.IsAbs(text) || o.folder == ".." || strings.HasPrefix(o.folder, "../") {
			return o, errs.New(errs.InvalidArgument, "the push option folder is %q, but must be a path inside the repository", text)
		}
	}
	return o, nil
}

// target returns the preview that a push of a branch becomes; nil: it is deployed to the app's hosts. git is what app.toml
// of the app says.
func (o options) target(git appconfig.Git, branch string) (*app.PreviewRequest, error) {
	req := &app.PreviewRequest{Name: o.preview, Host: o.host, TTL: o.ttl}
	switch {
	case o.preview != "":
	case git.Deploys(branch):
		for name, given := range map[string]bool{optionTTL: o.ttl != 0, optionHost: o.host != ""} {
			if given {
				return nil, errs.New(errs.InvalidArgument, "the push option %s is for a preview, and a push of the branch %s is deployed to the app's hosts", name, branch).WithHint("add -o preview=NAME")
			}
		}
		return nil, nil
	case !git.Previews:
		deploys := git.Branch
		if deploys == "" {
			deploys = "main"
		}
		return nil, errs.New(errs.FailedPrecondition, "pushes of the branch %s are not deployed", branch).
			WithHint("deploy it all the same: git push REMOTE %s:%s; or make it a preview: git push -o preview=NAME; or write branch or previews in [git] of app.toml", branch, deploys)
	default:
		req.Name = previewName(branch)
	}
	if o.canary > 0 {
		return nil, errs.New(errs.InvalidArgument, "the preview %s gets no requests to the app's hosts, and canary is a share of them", req.Name).WithHint("leave out -o canary, or push a branch that is deployed")
	}
	if req.TTL == 0 {
		req.TTL = app.DefaultPreviewTTL
	}
	if err := req.Validate(); err != nil {
		return nil, errs.Wrap(err, "preview of the branch %s", branch)
	}
	return req, nil
}
