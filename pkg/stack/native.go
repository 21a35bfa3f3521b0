package stack

import (
	"regexp"
	"slices"
	"strings"
)

// native says which Debian packages a module needs that is, or uses, a native library.
type native struct {
	build []string // to compile it
	run   []string // to use it
}

var (
	// nodeCompiler is what node-gyp needs; the image has the headers of Node.js.
	nodeCompiler = []string{"g++", "make", "python3"}
	// pythonCompiler is what extensions in C need.
	pythonCompiler = []string{"gcc", "libc6-dev", "python3-dev"}
	gitClient      = []string{"ca-certificates", "git"}
)

// nativeNode are npm packages that need more than the compiler.
var nativeNode = map[string]native{
	"canvas": {
		build: []string{"pkg-config", "libcairo2-dev", "libpango1.0-dev", "libjpeg-dev", "libgif-dev", "librsvg2-dev"},
		run:   []string{"libcairo2", "libpango-1.0-0", "libpangocairo-1.0-0", "libjpeg62-turbo", "libgif7", "librsvg2-2"},
	},
	"@prisma/client":       {build: []string{"openssl"}, run: []string{"openssl"}},
	"prisma":               {build: []string{"openssl"}, run: []string{"openssl"}},
	"libpq":                {build: []string{"libpq-dev"}, run: []string{"libpq5"}},
	"pg-native":            {build: []string{"libpq-dev"}, run: []string{"libpq5"}},
	"bcrypt":               {build: nodeCompiler},
	"better-sqlite3":       {build: nodeCompiler},
	"sqlite3":              {build: nodeCompiler},
	"node-sass":            {build: nodeCompiler},
	"argon2":               {build: nodeCompiler},
	"zeromq":               {build: nodeCompiler},
	"node-pty":             {build: nodeCompiler},
	"re2":                  {build: nodeCompiler},
	"isolated-vm":          {build: nodeCompiler},
	"cpu-features":         {build: nodeCompiler},
	"tree-sitter":          {build: nodeCompiler},
	"sodium-native":        {build: nodeCompiler},
	"node-rdkafka":         {build: append([]string{"libssl-dev", "zlib1g-dev"}, nodeCompiler...)},
	"microtime":            {build: nodeCompiler},
	"snappy":               {build: nodeCompiler},
	"deasync":              {build: nodeCompiler},
	"integer":              {build: nodeCompiler},
	"serialport":           {build: nodeCompiler},
	"leveldown":            {build: nodeCompiler},
	"farmhash":             {build: nodeCompiler},
	"ref-napi":             {build: nodeCompiler},
	"ffi-napi":             {build: nodeCompiler},
	"robotjs":              {build: append([]string{"libx11-dev", "libxtst-dev", "libpng-dev"}, nodeCompiler...), run: []string{"libx11-6", "libxtst6", "libpng16-16"}},
	"@mapbox/node-pre-gyp": {build: nodeCompiler},
}

// nativePython are distributions whose files from PyPI are compiled, or use a library of the system.
var nativePython = map[string]native{
	"psycopg2":      {build: append([]string{"libpq-dev"}, pythonCompiler...), run: []string{"libpq5"}},
	"psycopg":       {run: []string{"libpq5"}},
	"mysqlclient":   {build: append([]string{"default-libmysqlclient-dev", "pkg-config"}, pythonCompiler...), run: []string{"libmariadb3"}},
	"uwsgi":         {build: pythonCompiler},
	"python-ldap":   {build: append([]string{"libldap2-dev", "libsasl2-dev"}, pythonCompiler...), run: []string{"libldap-common", "libsasl2-2"}},
	"xmlsec":        {build: append([]string{"libxmlsec1-dev", "pkg-config"}, pythonCompiler...), run: []string{"libxmlsec1-openssl"}},
	"pycairo":       {build: append([]string{"libcairo2-dev", "pkg-config"}, pythonCompiler...), run: []string{"libcairo2"}},
	"pygraphviz":    {build: append([]string{"libgraphviz-dev", "pkg-config"}, pythonCompiler...), run: []string{"graphviz"}},
	"weasyprint":    {run: []string{"libpango-1.0-0", "libpangoft2-1.0-0", "libharfbuzz-subset0"}},
	"cairosvg":      {run: []string{"libcairo2"}},
	"pdf2image":     {run: []string{"poppler-utils"}},
	"pytesseract":   {run: []string{"tesseract-ocr"}},
	"ffmpeg-python": {run: []string{"ffmpeg"}},
	"dlib":          {build: append([]string{"cmake", "g++"}, pythonCompiler...)},
}

// compiles finds, in a lock file, modules that are compiled unless a download from elsewhere replaces that.
var compiles = regexp.MustCompile(`(?m)(^|[\s"'/])(node-gyp|prebuild-install|node-pre-gyp|node-addon-api|nan)("|'|@|:|\s|/\d)`)

// fromGit is a dependency that is cloned.
var fromGit = regexp.MustCompile(`^(git\+|git:|github:|gitlab:|bitbucket:|git@)|\.git(#|$)|^[\w.-]+/[\w.-]+(#|$)`)

// needs adds up what modules need, and says for which of them it is.
func needs(table map[string]native, modules []string) (build, run, which []string) {
	for _, name := range modules {
		n, ok := table[name]
		if !ok {
			continue
		}
		which = append(which, name)
		build, run = append(build, n.build...), append(run, n.run...)
	}
	return unique(build), unique(run), which
}

// unique returns the words of a list once, sorted.
func unique(list []string) []string {
	list = slices.Clone(list)
	slices.Sort(list)
	return slices.Compact(list)
}

func words(list []string) string { return strings.Join(list, " ") }
