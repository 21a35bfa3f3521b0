package stack

import (
	"encoding/json"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"miren.dev/runtime/pkg/appconfig"
	"miren.dev/runtime/pkg/errs"
)

func hasPHP(s *source) bool { return s.first("composer.json", "index.php", "public/index.php") != "" }

// composerJSON is what matters of a composer.json.
type composerJSON struct {
	Require      map[string]string          `json:"require"`
	Scripts      map[string]json.RawMessage `json:"scripts"`
	Repositories json.RawMessage            `json:"repositories"`
}

// documentRoots are the folders that PHP apps serve, by precedence.
var documentRoots = []string{"public", "web", "webroot", "htdocs", "public_html", "www"}

// herokuPHP is a command of other hosts that serves a folder.
var herokuPHP = regexp.MustCompile(`heroku-php-(?:apache2|nginx)(?:\s+-\S+\s+\S+)*(?:\s+([\w./-]+))?\s*$`)

// phpExtensions are packages of extensions that the image lacks.
var phpExtensions = map[string]string{
	"amqp": "php-amqp", "bz2": "php-bz2", "enchant": "php-enchant", "gmp": "php-gmp", "igbinary": "php-igbinary", "imagick": "php-imagick",
	"imap": "php-imap", "ldap": "php-ldap", "mailparse": "php-mailparse", "memcached": "php-memcached", "mongodb": "php-mongodb",
	"msgpack": "php-msgpack", "soap": "php-soap", "ssh2": "php-ssh2", "tidy": "php-tidy", "uuid": "php-uuid", "yaml": "php-yaml",
}

// phpIncluded are the extensions that the image has.
var phpIncluded = strings.Fields("apcu bcmath calendar ctype curl date dom exif ffi fileinfo filter ftp gd gettext hash iconv intl json libxml mbstring " +
	"mysqli mysqlnd opcache openssl pcntl pcre pdo pdo_mysql pdo_pgsql pdo_sqlite pgsql phar posix readline redis reflection session shmop simplexml " +
	"sockets sodium spl sqlite3 standard sysvmsg sysvsem sysvshm tokenizer xml xmlreader xmlwriter xsl zend-opcache zip zlib")

const composerCache = "--mount=type=cache,target=/root/.cache/composer"

func planPHP(s *source, p *Plan) error {
	composer, err := s.readComposer()
	if err != nil {
		return err
	}
	version, err := s.phpVersion(p, composer)
	if err != nil {
		return err
	}
	root, from := s.documentRoot(p)
	s.saysPackages(p)
	var extensions []string
	for _, name := range sortedKeys(composer.Require) {
		ext, ok := strings.CutPrefix(name, "ext-")
		if !ok || slices.Contains(phpIncluded, ext) {
			continue
		}
		if pkg := phpExtensions[ext]; pkg != "" {
			extensions = append(extensions, pkg)
			p.because("composer.json requires %s: %s is installed", name, pkg)
		} else {
			p.warn("composer.json requires %s, of which no package is known: name it in build.packages, or use a Dockerfile", name)
		}
	}
	assets, node, err := s.nodeAssets(p)
	if err != nil {
		return err
	}

	image := "runtime/php" + version
	var b strings.Builder
	b.WriteString(assets)
	fmt.Fprintf(&b, "FROM %s\n%s%s", image, s.args(), s.packages(extensions...))
	b.WriteString("ENV COMPOSER_ALLOW_SUPERUSER=1 COMPOSER_NO_INTERACTION=1 COMPOSER_CACHE_DIR=/root/.cache/composer\n")
	fmt.Fprintf(&b, "WORKDIR /app\nRUN chown %s /app\n", owner)
	framework, env := s.phpFramework(composer)
	if framework != "" {
		p.because("it is an app of %s", framework)
	}
	if env != "" {
		fmt.Fprintf(&b, "ENV %s\n", env)
	}
	install := "composer install --no-dev --prefer-dist --no-progress"
	hasComposer := s.has("composer.json")
	// Packages of the source itself must be there when they are installed.
	apart := hasComposer && !strings.Contains(string(composer.Repositories), `"path"`)
	if apart {
		fmt.Fprintf(&b, "COPY %s ./\nRUN %s %s --no-scripts --no-autoloader\n", words(s.there("composer.json", "composer.lock")), composerCache, install)
	}
	fmt.Fprintf(&b, "COPY --chown=%s . .\n", owner)
	if assets != "" {
		fmt.Fprintf(&b, "COPY --from=assets --chown=%s --exclude=node_modules /app/ ./\n", owner)
	}
	if hasComposer {
		lock := s.first("composer.lock")
		if lock == "" {
			p.because("dependencies are chosen anew by Composer whenever composer.json changes: there is no composer.lock")
			lock = "composer.json"
		} else {
			p.because("dependencies are installed by Composer as composer.lock says, without those for development")
		}
		p.fact(FactInstall, install, lock)
		if !apart {
			fmt.Fprintf(&b, "RUN %s %s --no-scripts --no-autoloader\n", composerCache, install)
		}
		b.WriteString("RUN composer dump-autoload --no-dev --optimize\n")
		for _, script := range []string{"post-install-cmd"} {
			if len(composer.Scripts[script]) > 0 {
				fmt.Fprintf(&b, "RUN composer run-script --no-dev %s\n", script)
				p.fact(FactBuild, "composer run-script "+script, "composer.json")
			}
		}
	}
	if c := s.cfg.Build.Command; c != "" {
		p.because("%s says that %q is run once the source is installed", s.cfg.File, c)
		p.fact(FactBuild, c, s.cfg.File)
		fmt.Fprintf(&b, "RUN %s\n", c)
	}
	var writable []string
	for _, dir := range []string{"storage", "bootstrap/cache", "var", "writable", "tmp", "database"} {
		if s.isDir(dir) {
			writable = append(writable, dir)
		}
	}
	if framework == "Symfony" && !slices.Contains(writable, "var") {
		writable = append(writable, "var")
	}
	if len(writable) > 0 {
		fmt.Fprintf(&b, "RUN mkdir -p %[1]s && chown -R %[2]s %[1]s\n", words(writable), owner)
	}
	fmt.Fprintf(&b, "ENV APACHE_DOCUMENT_ROOT=%s", path.Join("/app", root))
	// Without a file of rules, a front controller answers for paths that do not exist.
	if root != "." && s.has(path.Join(root, "index.php")) && !s.has(path.Join(root, ".htaccess")) {
		p.because("paths that do not exist are answered by %s, since there is no .htaccess", path.Join(root, "index.php"))
		b.WriteString(" APACHE_FALLBACK=/index.php")
	}
	fmt.Fprintf(&b, " PORT=%d\nUSER %s\nCMD [\"apache-foreground\"]\n", appconfig.DefaultPort, owner)
	if !s.ownsCommands() || s.cfg.Service(appconfig.DefaultService) != nil && len(s.cfg.Service(appconfig.DefaultService).Command) == 0 {
		p.fact(FactStart, "Apache with PHP, "+path.Clean(root)+"/", from)
	}
	p.Dockerfile, p.Generated, p.Services = b.String(), true, web(appconfig.DefaultPort)
	if node != "" {
		p.Bases = append(p.Bases, node)
	}
	p.Bases = append(p.Bases, image)
	return nil
}

func (s *source) readComposer() (*composerJSON, error) {
	c := &composerJSON{}
	if !s.has("composer.json") {
		return c, nil
	}
	text, err := s.read("composer.json")
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal([]byte(text), c); err != nil {
		return nil, jsonError("composer.json", text, err).WithHint("run `composer validate`")
	}
	return c, nil
}

// phpVersion is what comes after "runtime/php"; empty when any version will do.
func (s *source) phpVersion(p *Plan, c *composerJSON) (string, error) {
	want, where := s.cfg.Build.Version, s.cfg.File
	if want == "" {
		want, where = c.Require["php"], "require in composer.json"
	}
	if want == "" {
		p.because("no version of PHP is asked for: that of the server's distribution")
		p.fact(FactVersion, "PHP of the server's distribution", "")
		return "", nil
	}
	tag := linesFor(phpLines, want)
	if tag == "" {
		return "", errs.New(errs.InvalidArgument, "%s asks for PHP %q, which no known version fits", where, want).
			WithHint("known are %s to %s, or set build.version to one", phpLines[0], phpLines[len(phpLines)-1])
	}
	p.because("%s asks for PHP %s, as the server has it", where, want)
	p.fact(FactVersion, "PHP "+want, where)
	return ":" + tag, nil
}

// documentRoot is the folder that is served, and the file that decided it.
func (s *source) documentRoot(p *Plan) (root, from string) {
	if web := s.cfg.Service(appconfig.DefaultService); web != nil {
		if m := herokuPHP.FindStringSubmatch(commandLine(web.Command)); m != nil {
			// Apache is what runs here, with the folder that the command names.
			cfg := *s.cfg
			cfg.Services = slices.Clone(cfg.Services)
			for i := range cfg.Services {
				if cfg.Services[i].Name == appconfig.DefaultService {
					cfg.Services[i].Command = nil
				}
			}
			s.cfg = &cfg
			root = path.Clean(m[1])
			p.because("the command of the service web serves %s/: Apache does", root)
			return root, "Procfile"
		}
	}
	for _, dir := range documentRoots {
		if f := path.Join(dir, "index.php"); s.has(f) {
			p.because("there is %s: %s/ is served", f, dir)
			return dir, f
		}
	}
	if s.has("index.php") {
		p.because("there is index.php: the folder itself is served")
		return ".", "index.php"
	}
	for _, dir := range documentRoots {
		if f := path.Join(dir, "index.html"); s.has(f) {
			p.because("there is %s: %s/ is served", f, dir)
			return dir, f
		}
	}
	return ".", "composer.json"
}

// phpFramework is the framework of an app and the variables that it needs; empty for none that is known.
func (s *source) phpFramework(c *composerJSON) (name, env string) {
	switch {
	case c.Require["laravel/framework"] != "" || s.has("artisan"):
		return "Laravel", "LOG_CHANNEL=stderr"
	case c.Require["symfony/framework-bundle"] != "" || s.has("config/bundles.php"):
		return "Symfony", "APP_ENV=prod APP_DEBUG=0"
	case c.Require["codeigniter4/framework"] != "":
		return "CodeIgniter", "CI_ENVIRONMENT=production"
	case c.Require["slim/slim"] != "":
		return "Slim", ""
	case s.first("wp-config.php", "wp-load.php") != "":
		return "WordPress", ""
	}
	return "", ""
}
