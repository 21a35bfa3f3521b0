package route

import (
	"context"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/appconfig"
)

// settings are the flags of `r route configure`.
type settings struct {
	*command.Env
	path        string
	timeout     time.Duration
	maxBody     string
	allow       []string
	rate, burst int64
	users       []string
	removeUsers []string
	compress    bool
	sticky      bool
	pages       []string
	oidc        app.RouteOidc
	oidcSecret  string
	reset       []string
}

func newConfigure(e *command.Env) *cobra.Command {
	o := &settings{Env: e}
	cmd := &cobra.Command{
		Use:   "configure HOST",
		Short: "Set what the ingress does with the requests of a route",
		Long: `Sets limits and gates of a route: what flags do not name stays as it is. --reset takes a setting away. The password of
--user and the secret of --oidc-client-secret are taken from variables of the environment, so that they are in no list of processes.`,
		Example: `  r route configure shop.example.com --timeout 30s --max-body 10MiB --compress --sticky
  r route configure shop.example.com --path /admin --allow 10.1.0.0/16 --user ann=ADMIN_PASSWORD
  r route configure shop.example.com --rate 20 --burst 100 --error-page 503=busy.html
  r route configure shop.example.com --oidc-issuer https://login.example.com --oidc-client-id shop --oidc-client-secret SECRET --oidc-domain example.com
  r route configure shop.example.com --reset rate,error_pages`,
		Args: command.Args(1, 1, "HOST"),
		RunE: func(cmd *cobra.Command, args []string) error { return o.run(cmd, args[0]) },
	}
	f := cmd.Flags()
	f.StringVar(&o.path, "path", "", "path prefix; default /")
	f.DurationVar(&o.timeout, "timeout", 0, "time until an answer must begin")
	f.StringVar(&o.maxBody, "max-body", "", "largest body of a request, such as 10MiB")
	f.StringSliceVar(&o.allow, "allow", nil, "networks whose clients the ingress admits; it refuses others")
	f.Int64Var(&o.rate, "rate", 0, "requests per second of one client address")
	f.Int64Var(&o.burst, "burst", 0, "requests that a client may make at once after a pause; default the rate")
	f.StringArrayVar(&o.users, "user", nil, "NAME=VARIABLE: a user with the password in this variable of the environment")
	f.StringSliceVar(&o.removeUsers, "remove-user", nil, "users that are removed")
	f.BoolVar(&o.compress, "compress", false, "compress answers with zstd or gzip")
	f.BoolVar(&o.sticky, "sticky", false, "lead the requests of a client to the same sandbox, by a cookie")
	f.StringArrayVar(&o.pages, "error-page", nil, "STATUS=FILE or default=FILE: HTML for people instead of the ingress's page")
	f.StringVar(&o.oidc.Issuer, "oidc-issuer", "", "URL of the provider of OpenID Connect with which visitors must log in")
	f.StringVar(&o.oidc.ClientID, "oidc-client-id", "", "id that the provider gave to this route")
	f.StringVar(&o.oidcSecret, "oidc-client-secret", "", "variable of the environment with the secret that goes with the id")
	f.StringSliceVar(&o.oidc.Emails, "oidc-email", nil, "e-mail addresses that are admitted")
	f.StringSliceVar(&o.oidc.Domains, "oidc-domain", nil, "domains of e-mail addresses that are admitted")
	f.StringSliceVar(&o.oidc.Groups, "oidc-group", nil, "groups that are admitted, by the claim groups")
	f.StringSliceVar(&o.reset, "reset", nil, "settings to take away: timeout, max_body_bytes, allow, rate, burst, users, compress, sticky, error_pages, oidc")
	return cmd
}

func (o *settings) run(cmd *cobra.Command, host string) error {
	req := &app.ConfigureRouteRequest{Project: o.Project(), Host: host, Path: o.path, RemoveUsers: o.removeUsers, Reset: o.reset}
	s := &app.RouteSettings{Allow: o.allow}
	given := cmd.Flags().Changed
	if given("timeout") {
		s.Timeout = &o.timeout
	}
	if given("max-body") {
		n, ok := appconfig.ParseBytes(o.maxBody)
		if !ok {
			return exit.Usagef("--max-body %q is not a size such as 10MiB", o.maxBody)
		}
		s.MaxBodyBytes = &n
	}
	if given("rate") {
		s.Rate = &o.rate
	}
	if given("burst") {
		s.Burst = &o.burst
	}
	if given("compress") {
		s.Compress = &o.compress
	}
	if given("sticky") {
		s.Sticky = &o.sticky
	}
	// false is how a setting is taken away.
	for name, off := range map[string]bool{"compress": given("compress") && !o.compress, "sticky": given("sticky") && !o.sticky} {
		if off {
			req.Reset = append(req.Reset, name)
		}
	}
	var err error
	if req.Passwords, err = passwords(o.users); err != nil {
		return err
	}
	if s.ErrorPages, err = errorPages(o.pages); err != nil {
		return err
	}
	if err := o.login(cmd, s, req); err != nil {
		return err
	}
	req.Settings = s
	return o.send(cmd.Context(), req)
}

// login reads the flags of the login.
func (o *settings) login(cmd *cobra.Command, s *app.RouteSettings, req *app.ConfigureRouteRequest) error {
	if o.oidc.Issuer == "" {
		for _, name := range []string{"oidc-client-id", "oidc-client-secret", "oidc-email", "oidc-domain", "oidc-group"} {
			if cmd.Flags().Changed(name) {
				return exit.Usagef("--%s needs --oidc-issuer: the flags of a login are given together", name)
			}
		}
		return nil
	}
	if o.oidcSecret != "" {
		if req.OidcSecret = os.Getenv(o.oidcSecret); req.OidcSecret == "" {
			return exit.Usagef("--oidc-client-secret: the variable that it names is empty or not set")
		}
	}
	s.Oidc = &o.oidc
	return nil
}

func (o *settings) send(ctx context.Context, req *app.ConfigureRouteRequest) error {
	c, err := o.Connect(ctx)
	if err != nil {
		return err
	}
	resp, err := app.NewRoutesClient(c).Configure(ctx, req)
	if err != nil {
		return err
	}
	r, err := entity.Decode[app.Route](&resp.Route)
	if err != nil {
		return err
	}
	if o.JSON {
		return o.PrintJSON(r)
	}
	o.Printf("%s configured %s%s\n", o.Paint(console.Green, "✓"), r.Spec.Host, r.Spec.Path)
	return nil
}

// passwords reads NAME=VARIABLE.
func passwords(list []string) (map[string]string, error) {
	out := map[string]string{}
	for _, u := range list {
		name, variable, ok := strings.Cut(u, "=")
		if !ok || name == "" || variable == "" {
			return nil, exit.Usagef("--user is NAME=VARIABLE, the name of a variable of the environment")
		}
		if out[name] = os.Getenv(variable); out[name] == "" {
			return nil, exit.Usagef("--user %s: the variable that it names is empty or not set", name)
		}
	}
	return out, nil
}

// errorPages reads STATUS=FILE.
func errorPages(list []string) (map[string]string, error) {
	out := map[string]string{}
	for _, p := range list {
		status, file, ok := strings.Cut(p, "=")
		if !ok || status == "" || file == "" {
			return nil, exit.Usagef("--error-page %q is not STATUS=FILE", p)
		}
		b, err := os.ReadFile(file)
		if err != nil {
			return nil, exit.Usagef("--error-page: %v", err)
		}
		if len(b) > app.MaxErrorPage || !utf8.Valid(b) {
			return nil, exit.Usagef("--error-page: %s has more than %d bytes, or is not UTF-8", file, app.MaxErrorPage)
		}
		out[status] = string(b)
	}
	return out, nil
}
