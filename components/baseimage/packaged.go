package baseimage

import (
	"archive/tar"
	"bytes"
	"context"
	"embed"
	"errors"
	"io/fs"
	"slices"
	"strings"

	"miren.dev/runtime/pkg/errs"
)

// packagedImage is an image of a language that the distribution has packages of. "%" in a package or a variable stands
// for the version. The folder apps/<name>, if there is one, has files of the image.
type packagedImage struct {
	name     string
	language language
	index    string // package whose version is the language's, where the release is not known
	parent   string // image that it extends, of the same version; empty: the minimal system
	packages []string
	env      []string
	cmd      []string
	hooks    []string // options of mmdebstrap
}

var (
	phpLanguage  = language{title: "PHP", of: func(v languageVersions) string { return v.php }, files: "require.php in composer.json"}
	rubyLanguage = language{title: "Ruby", of: func(v languageVersions) string { return v.ruby }, files: ".ruby-version, ruby in Gemfile"}
	javaLanguage = language{title: "Java", of: func(v languageVersions) string { return v.java }, files: "java.version in pom.xml, system.properties"}
	rustLanguage = language{title: "Rust", of: func(v languageVersions) string { return v.rust }, files: "rust-version in Cargo.toml", release: true}
)

// Servers of addons. An addon is made of them by the names of its engines (domain/addons).
var (
	postgresServer = language{title: "PostgreSQL", of: func(v languageVersions) string { return v.postgres }, files: "--version of `r addon create`"}
	valkeyServer   = language{title: "Valkey", of: func(v languageVersions) string { return v.valkey }, files: "--version of `r addon create`"}
	mariadbServer  = language{title: "MariaDB", of: func(v languageVersions) string { return v.mariadb }, files: "--version of `r addon create`"}
)

// noCluster has the package make no database when it is installed: addon-start makes it on the disk.
const noCluster = `--setup-hook=mkdir -p "$1"/etc/postgresql-common; echo create_main_cluster = false >"$1"/etc/postgresql-common/createcluster.conf`

// packagedImages are the images of languages besides Python, and of the servers of addons; a parent stands before its
// children.
var packagedImages = []packagedImage{
	{
		name: "php", language: phpLanguage, index: "php-cli",
		packages: []string{
			"apache2", "composer", "git", "libapache2-mod-php", "php-apcu", "php-bcmath", "php-cli", "php-curl", "php-gd", "php-intl", "php-mbstring",
			"php-mysql", "php-pgsql", "php-redis", "php-sqlite3", "php-xml", "php-zip", "unzip",
		},
		// The colon stands for the folder that is compiled in.
		env: []string{"PHP_INI_SCAN_DIR=:/etc/php/runtime", "APACHE_DOCUMENT_ROOT=/app", "APACHE_FALLBACK=disabled", "WEB_CONCURRENCY=16"},
		cmd: []string{"apache-foreground"},
	},
	{
		name: "ruby", language: rubyLanguage, index: "ruby",
		packages: []string{"bundler", "libjemalloc2", "libyaml-0-2", "ruby", "tzdata"},
		env: []string{
			"GEM_HOME=/usr/local/bundle", "BUNDLE_APP_CONFIG=/usr/local/bundle", "BUNDLE_SILENCE_ROOT_WARNING=1",
			"PATH=/usr/local/bundle/bin:" + strings.TrimPrefix(searchPath, "PATH="), "LANG=C.UTF-8",
		},
		cmd: []string{"irb"},
	},
	{name: "ruby-build", language: rubyLanguage, index: "ruby", parent: "ruby", packages: []string{
		"g++", "gcc", "git", "libc6-dev", "libffi-dev", "libssl-dev", "libyaml-dev", "make", "pkg-config", "ruby-dev", "zlib1g-dev",
	}},
	{name: "java", language: javaLanguage, index: "default-jre-headless", packages: []string{"openjdk-%-jre-headless"}, cmd: []string{"java"}},
	{name: "java-build", language: javaLanguage, index: "default-jre-headless", packages: []string{"git", "maven", "openjdk-%-jdk-headless"}},
	{name: "rust", language: rustLanguage, index: "rustc", packages: []string{"cargo", "g++", "gcc", "git", "libc6-dev", "libssl-dev", "make", "pkg-config", "rustc"}},
	{name: "rust-run", language: rustLanguage, index: "rustc"},
	{
		name: "postgres", language: postgresServer, index: "postgresql", packages: []string{"postgresql-%"},
		env: []string{"LANG=C.UTF-8", "ADDON_VERSION=%"}, cmd: []string{"addon-start"}, hooks: []string{noCluster},
	},
	{
		name: "valkey", language: valkeyServer, index: "valkey", packages: []string{"valkey-server", "valkey-tools"},
		env: []string{"ADDON_VERSION=%"}, cmd: []string{"addon-start"},
	},
	{
		name: "mysql", language: mariadbServer, index: "mariadb-server", packages: []string{"mariadb-server"},
		env: []string{"ADDON_VERSION=%"}, cmd: []string{"addon-start"}, hooks: []string{`--customize-hook=rm -rf "$1"/var/lib/mysql/*`},
	},
}

//go:embed apps
var packagedFiles embed.FS

func lookupPackaged(name string) *packagedImage {
	i := slices.IndexFunc(packagedImages, func(p packagedImage) bool { return p.name == name })
	if i < 0 {
		return nil
	}
	return &packagedImages[i]
}

// packaged is the image of a version of a language; want is as choose understands it.
func (s *Store) packaged(ctx context.Context, p *packagedImage, want, release string) (*recipe, error) {
	host, err := readHost()
	if err != nil {
		return nil, err
	}
	own := ""
	if !slices.ContainsFunc(releases, func(r distribution) bool { return r.id == host.id && r.codename == host.codename }) {
		own = strings.TrimPrefix(hostVersion(ctx, p.index), "1.") // Java's is 1.21
	}
	found, err := choose(p.language, offers(p.language, host, own), want, release)
	if err != nil {
		return nil, err
	}
	return s.packagedOf(p, found)
}

func (s *Store) packagedOf(p *packagedImage, found offer) (*recipe, error) {
	host, err := hostFor(found.codename)
	if err != nil {
		return nil, err
	}
	parent, err := s.debian(found.codename)
	if len(p.packages) == 0 || err != nil {
		return parent, err
	}
	var packages []string
	if p.parent != "" {
		above := lookupPackaged(p.parent)
		packages = above.of(found.version)
		if parent, err = s.packagedOf(above, found); err != nil {
			return nil, err
		}
	}
	packages = append(packages, p.of(found.version)...)
	files, err := filesOf(p.name)
	if err != nil {
		return nil, err
	}
	r := &recipe{
		name: p.name, version: found.version, parent: parent, inputs: slices.Clone(packages),
		env: append([]string{searchPath}, withVersion(p.env, found.version)...), cmd: p.cmd,
	}
	if p.parent != "" {
		r.env = p.env // the search path is the parent's
	}
	for _, f := range files {
		r.inputs = append(r.inputs, f.name, string(f.body))
	}
	r.make = func(ctx context.Context, b *builder) error {
		// The packages of Java fail where this folder was left out.
		if err := b.packages(ctx, host, packages, append([]string{`--essential-hook=mkdir -p "$1"/usr/share/man/man1`}, p.hooks...)); err != nil || len(files) == 0 {
			return err
		}
		return b.layer(func(tw *tar.Writer) error { return putFiles(tw, files) })
	}
	return r, nil
}

// of are the packages for a version.
func (p *packagedImage) of(version string) []string {
	return withVersion(p.packages, version)
}

// withVersion puts a version where "%" stands for it.
func withVersion(list []string, version string) []string {
	var out []string
	for _, s := range list {
		out = append(out, strings.ReplaceAll(s, "%", version))
	}
	return out
}

type imageFile struct {
	name string
	body []byte
}

// putFiles writes the files of an image's folder.
func putFiles(tw *tar.Writer, files []imageFile) error {
	for _, f := range files {
		mode := int64(0o644)
		if strings.Contains(f.name, "/bin/") {
			mode = 0o755
		}
		if err := put(tw, f.name, mode, int64(len(f.body)), bytes.NewReader(f.body)); err != nil {
			return err
		}
	}
	return nil
}

// filesOf are those of an image's folder.
func filesOf(image string) ([]imageFile, error) {
	var files []imageFile
	dir := "apps/" + image
	err := fs.WalkDir(packagedFiles, dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		body, err := packagedFiles.ReadFile(name)
		files = append(files, imageFile{strings.TrimPrefix(name, dir+"/"), body})
		return err
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, errs.New(errs.Internal, "files of image %s: %w", image, err)
	}
	return files, nil
}
