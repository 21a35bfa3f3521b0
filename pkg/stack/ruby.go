package stack

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"miren.dev/runtime/pkg/appconfig"
	"miren.dev/runtime/pkg/errs"
)

func hasRuby(s *source) bool { return s.first("Gemfile", "config.ru") != "" }

var (
	gemLine      = regexp.MustCompile(`(?m)^\s*gem[\s(]+["']([\w.-]+)["']`)
	lockedGem    = regexp.MustCompile(`(?m)^    ([\w.-]+) \(`)
	gemfileRuby  = regexp.MustCompile(`(?m)^\s*ruby[\s(]+["']([^"']+)["'](?:\s*,\s*["']([^"']+)["'])?`)
	gemOfSource  = regexp.MustCompile(`(?m)^\s*gemspec\b|\bpath:\s*["']|:path\s*=>`)
	sinatraStart = regexp.MustCompile(`require\s*\(?["']sinatra["']`)
)

const gemCache = "--mount=type=cache,target=/usr/local/bundle/cache"

const rubyEnv = "ENV RAILS_ENV=production RACK_ENV=production APP_ENV=production BUNDLE_WITHOUT=development:test"

// rubyApp is a source of Ruby while its plan is made.
type rubyApp struct {
	s    *source
	gems []string // of the lock file, else of the Gemfile
	text string   // of the Gemfile
	lock string   // empty: there is none
}

func (a *rubyApp) has(gem string) bool { return slices.Contains(a.gems, gem) }

func planRuby(s *source, p *Plan) error {
	a := &rubyApp{s: s, lock: s.first("Gemfile.lock")}
	if err := a.readGems(); err != nil {
		return err
	}
	tag, loosen, err := a.version(p)
	if err != nil {
		return err
	}
	command, from, err := a.start(p)
	if err != nil {
		return err
	}
	compile, run, which := needs(nativeRuby, a.gems)
	if len(run)+len(compile) > 0 {
		p.because("%s: installed with %s, run with %s", strings.Join(which, ", "), none(compile), none(run))
	}
	s.saysPackages(p)
	assets, node, err := s.nodeAssets(p)
	if err != nil {
		return err
	}
	build, image := "runtime/ruby-build"+tag, "runtime/ruby"+tag
	var b strings.Builder
	b.WriteString(assets)
	fmt.Fprintf(&b, "FROM %s AS build\n%s%s%s\nWORKDIR /app\nRUN mkdir -p /usr/local/bundle/gems\n", build, s.args(), s.packages(compile...), rubyEnv)
	a.writeInstall(&b, p, loosen)
	if assets != "" {
		b.WriteString("COPY --from=assets --exclude=node_modules /app/ ./\n")
	}
	if a.has("bootsnap") {
		b.WriteString("RUN bundle exec bootsnap precompile --gemfile app/ lib/\n")
	}
	if a.has("rails") && (a.has("sprockets") || a.has("sprockets-rails") || a.has("propshaft")) {
		// The secrets of the app are there only when it runs.
		b.WriteString("RUN SECRET_KEY_BASE_DUMMY=1 SECRET_KEY_BASE=only-while-building SKIP_JS_BUILD=1 SKIP_CSS_BUILD=1 SKIP_YARN_INSTALL=1 bundle exec rails assets:precompile\n")
		p.because("the files of app/assets are prepared by assets:precompile, without the secrets of the app")
		p.fact(FactBuild, "rails assets:precompile", "Gemfile")
	}
	if c := s.cfg.Build.Command; c != "" {
		p.because("%s says that %q is run once the source is installed", s.cfg.File, c)
		p.fact(FactBuild, c, s.cfg.File)
		fmt.Fprintf(&b, "RUN %s\n", c)
	}
	fmt.Fprintf(&b, "\nFROM %s\n%s%s", image, s.packages(run...), rubyEnv)
	fmt.Fprintf(&b, " RAILS_LOG_TO_STDOUT=1 RAILS_SERVE_STATIC_FILES=1 MALLOC_ARENA_MAX=2 PORT=%d\n", appconfig.DefaultPort)
	b.WriteString("COPY --from=build /usr/local/bundle /usr/local/bundle\n")
	fmt.Fprintf(&b, "COPY --from=build --chown=%s /app /app/\nWORKDIR /app\nUSER %s\n", owner, owner)
	if command != "" {
		fmt.Fprintf(&b, "CMD %s\n", jsonList(appconfig.Shell(command)))
		p.fact(FactStart, command, from)
	}
	p.Dockerfile, p.Generated, p.Services = b.String(), true, web(appconfig.DefaultPort)
	if node != "" {
		p.Bases = append(p.Bases, node)
	}
	p.Bases = append(p.Bases, build, image)
	return nil
}

func (a *rubyApp) readGems() error {
	if !a.s.has("Gemfile") {
		return nil
	}
	var err error
	if a.text, err = a.s.read("Gemfile"); err != nil {
		return err
	}
	text, pattern := a.text, gemLine
	if a.lock != "" {
		if text, err = a.s.read(a.lock); err != nil {
			return err
		}
		pattern = lockedGem
	}
	for _, m := range pattern.FindAllStringSubmatch(text, -1) {
		a.gems = append(a.gems, m[1])
	}
	a.gems = unique(a.gems)
	return nil
}

// version is what comes after the name of an image, and the command by which Bundler accepts a Ruby of another patch
// version than the Gemfile says; both may be empty.
func (a *rubyApp) version(p *Plan) (tag, loosen string, err error) {
	want, where := a.s.cfg.Build.Version, a.s.cfg.File
	for _, f := range []string{".ruby-version", ".tool-versions"} {
		if want != "" {
			break
		}
		if want, err = a.s.versionIn(f, "ruby"); err != nil {
			return "", "", err
		}
		where = f
	}
	// Bundler refuses to run where the Gemfile asks for another version.
	if m := gemfileRuby.FindStringSubmatch(a.text); m != nil || strings.Contains(a.text, "ruby file:") {
		loosen = `sed -i -E '/^\s*ruby[ (]/d' Gemfile`
		if a.lock != "" {
			loosen += ` && sed -i '/^RUBY VERSION/,/^$/d' ` + a.lock
		}
		if m != nil && want == "" {
			want, where = strings.TrimSpace(m[1]+" "+m[2]), "ruby in Gemfile"
		}
	}
	want = strings.TrimPrefix(want, "ruby-")
	if want == "" {
		p.because("no version of Ruby is asked for: that of the server's distribution")
		p.fact(FactVersion, "Ruby of the server's distribution", "")
		return "", loosen, nil
	}
	lines := linesFor(rubyLines, want)
	if lines == "" {
		return "", "", errs.New(errs.InvalidArgument, "%s asks for Ruby %q, which no known version fits", where, want).
			WithHint("known are %s to %s, or set build.version to one", rubyLines[0], rubyLines[len(rubyLines)-1])
	}
	if exactVersion.MatchString(want) {
		lines = strings.TrimSuffix(lines, "-")
		p.because("%s asks for Ruby %s: the distribution's %s", where, want, lines)
	} else {
		p.because("%s asks for Ruby %s, as the server has it", where, want)
	}
	p.fact(FactVersion, "Ruby "+want, where)
	return ":" + lines, loosen, nil
}

// start finds the command of the web service; empty: services have their own.
func (a *rubyApp) start(p *Plan) (command, from string, err error) {
	if a.s.ownsCommands() {
		return "", "", nil
	}
	bundle := "bundle exec "
	if a.text == "" {
		bundle = ""
	}
	server := func(config string) (string, string) {
		switch {
		case a.has("puma") && a.s.has("config/puma.rb"):
			p.because("config/puma.rb is there: served by puma")
			return bundle + "puma -C config/puma.rb", "config/puma.rb"
		case a.has("puma"):
			p.because("puma is among the gems: it serves %s", config)
			return bundle + "puma -b tcp://0.0.0.0:$PORT", config
		case a.has("unicorn"):
			p.because("unicorn is among the gems: it serves %s", config)
			return bundle + "unicorn -o 0.0.0.0 -p $PORT", config
		}
		p.warn("no server for production is among the gems (puma): rackup chooses one")
		return bundle + "rackup -o 0.0.0.0 -p $PORT", config
	}
	switch {
	case a.has("rails") && a.s.has("config/application.rb"):
		p.because("config/application.rb is that of Rails")
		p.warn("Rails needs SECRET_KEY_BASE or RAILS_MASTER_KEY when it runs: `r app env set --secret`")
		if a.has("puma") && a.s.has("config/puma.rb") {
			command, from = server("config.ru")
			return command, from, nil
		}
		return bundle + "rails server -b 0.0.0.0 -p $PORT", "config/application.rb", nil
	case a.s.has("config.ru"):
		command, from = server("config.ru")
		return command, from, nil
	}
	for _, f := range []string{"app.rb", "server.rb", "main.rb", "web.rb", "application.rb"} {
		if !a.s.has(f) {
			continue
		}
		if text, err := a.s.read(f); err == nil && sinatraStart.MatchString(text) {
			p.because("%s is an app of Sinatra, which serves itself", f)
			return bundle + "ruby " + f + " -o 0.0.0.0 -p $PORT", f, nil
		}
		p.because("there is %s: it is run by ruby", f)
		return bundle + "ruby " + f, f, nil
	}
	return "", "", errs.New(errs.InvalidArgument, "it is a Ruby project, but how it starts is not known").
		WithHint("looked for config.ru, config/application.rb (Rails), app.rb, server.rb, main.rb and web.rb\nadd a config.ru, or a Procfile with a line `web: <command>`; for a site that Ruby generates (Jekyll) deploy its folder, or add a Dockerfile")
}

// writeInstall installs the gems and copies the source.
func (a *rubyApp) writeInstall(b *strings.Builder, p *Plan, loosen string) {
	if a.text == "" {
		b.WriteString("COPY . .\n")
		return
	}
	install := "bundle install"
	if a.lock != "" {
		install = "BUNDLE_FROZEN=1 bundle install"
		p.because("gems are installed by Bundler as %s locks them, without those of development and test", a.lock)
	} else {
		p.because("gems are chosen anew by Bundler whenever the Gemfile changes: there is no Gemfile.lock")
	}
	if a.s.isDir("vendor/cache") {
		install += " --local"
		p.because("vendor/cache is there: no gems are downloaded")
	}
	from := a.lock
	if from == "" {
		from = "Gemfile"
	}
	p.fact(FactInstall, strings.TrimPrefix(install, "BUNDLE_FROZEN=1 "), from)
	// Gems of the source itself must be there when they are installed.
	if gemOfSource.MatchString(a.text) {
		b.WriteString("COPY . .\n")
	} else {
		fmt.Fprintf(b, "COPY %s ./\n", words(a.s.there("Gemfile", "Gemfile.lock", ".ruby-version", ".tool-versions")))
		if a.s.isDir("vendor/cache") {
			b.WriteString("COPY vendor/cache ./vendor/cache\n")
		}
	}
	if loosen != "" {
		fmt.Fprintf(b, "RUN %s\n", loosen)
	}
	fmt.Fprintf(b, "RUN %s %s\n", gemCache, install)
	if gemOfSource.MatchString(a.text) {
		return
	}
	excluded := ""
	if loosen != "" || a.lock == "" { // as they were installed
		excluded = "--exclude=Gemfile --exclude=Gemfile.lock "
	}
	fmt.Fprintf(b, "COPY %s. .\n", excluded)
}

// nativeRuby are gems that use a library of the system; the image for building has a compiler.
var nativeRuby = map[string]native{
	"pg":                 {build: []string{"libpq-dev"}, run: []string{"libpq5"}},
	"mysql2":             {build: []string{"default-libmysqlclient-dev"}, run: []string{"libmariadb3"}},
	"sqlite3":            {build: []string{"libsqlite3-dev"}, run: []string{"libsqlite3-0"}},
	"rmagick":            {build: []string{"libmagickwand-dev"}, run: []string{"imagemagick"}},
	"mini_magick":        {run: []string{"imagemagick"}},
	"ruby-vips":          {run: []string{"libvips42"}},
	"curb":               {build: []string{"libcurl4-openssl-dev"}, run: []string{"libcurl4"}},
	"charlock_holmes":    {build: []string{"libicu-dev"}},
	"tiny_tds":           {build: []string{"freetds-dev"}, run: []string{"libsybdb5"}},
	"rdkafka":            {build: []string{"cmake"}},
	"streamio-ffmpeg":    {run: []string{"ffmpeg"}},
	"wkhtmltopdf-binary": {run: []string{"fontconfig", "libxrender1"}},
}
