package stack

import (
	"fmt"
	"regexp"
	"strings"
)

// manager is how a package manager installs the packages of a project.
type manager struct {
	name    string
	locks   []string // its lock files
	program string   // npm package that has it; empty: it is there with Node.js
	cache   string   // where downloads are kept
	sharing string   // of the cache between builds, as in a Dockerfile; empty: at the same time
	env     string   // variables of its steps
	frozen  string   // installs what is locked
	install string   // installs without a lock file
	prod    string   // added to both: without development dependencies
	prune   string   // removes development dependencies; empty: it cannot
	run     string   // followed by the name of a script
	majors  []int    // known ones, the preferred first
	// scripts of the project that it runs when it installs, in their order.
	scripts []string
}

// mount is the option of RUN that gives it the cache.
func (m *manager) mount() string {
	option := "--mount=type=cache,target=" + m.cache
	if m.sharing != "" {
		option += ",sharing=" + m.sharing
	}
	return option
}

var installScripts = []string{"preinstall", "install", "postinstall", "prepublish", "prepare"}

// The package managers, by precedence of their lock files.
var (
	npmManager = manager{
		name: "npm", locks: []string{"package-lock.json", "npm-shrinkwrap.json"}, cache: "/root/.npm",
		frozen: "npm ci", install: "npm install", prod: "--omit=dev", prune: "npm prune --omit=dev --ignore-scripts", run: "npm run",
		majors: []int{11, 10, 9, 8, 7, 6}, scripts: installScripts,
	}
	pnpmManager = manager{
		name: "pnpm", locks: []string{"pnpm-lock.yaml"}, program: "pnpm", cache: "/root/.local/share/pnpm/store",
		// A store on another file system cannot be linked from.
		env:    "ENV npm_config_store_dir=/root/.local/share/pnpm/store npm_config_package_import_method=copy\n",
		frozen: "pnpm install --frozen-lockfile", install: "pnpm install --no-frozen-lockfile", prod: "--prod",
		prune: "CI=true npm_config_ignore_scripts=true pnpm prune --prod", run: "pnpm run",
		majors: []int{9, 10, 8, 7, 6}, scripts: installScripts,
	}
	bunManager = manager{
		name: "bun", locks: []string{"bun.lock", "bun.lockb"}, program: "bun", cache: "/root/.bun/install/cache",
		// The cache is on another file system, which cannot be linked from.
		env:    "ENV BUN_INSTALL_CACHE_DIR=/root/.bun/install/cache\n",
		frozen: "bun install --frozen-lockfile --backend=copyfile", install: "bun install --backend=copyfile", prod: "--production",
		prune: "rm -rf node_modules && bun install --frozen-lockfile --production --ignore-scripts --backend=copyfile", run: "bun run",
		majors: []int{1}, scripts: []string{"preinstall", "install", "postinstall", "prepare"},
	}
	yarnManager = manager{
		name: "yarn", locks: []string{"yarn.lock"}, program: "yarn", cache: "/usr/local/share/.cache/yarn", sharing: "locked",
		frozen: "yarn install --frozen-lockfile", install: "yarn install", prod: "--production",
		prune: "yarn install --production --frozen-lockfile --ignore-scripts --prefer-offline", run: "yarn run",
		majors: []int{1}, scripts: installScripts,
	}
	berryManager = manager{
		name: "yarn", locks: []string{"yarn.lock"}, program: "@yarnpkg/cli-dist", cache: "/root/.yarn", sharing: "locked",
		env:    "ENV YARN_NODE_LINKER=node-modules YARN_ENABLE_TELEMETRY=false\n",
		frozen: "yarn install --immutable", install: "yarn install --no-immutable", prod: "",
		// It would run the scripts of the project again, without what they need.
		prune: "cp package.json /tmp/ && " + withoutScripts + " && yarn workspaces focus --all --production && cp /tmp/package.json ./", run: "yarn run",
		majors: []int{4, 3, 2}, scripts: []string{"preinstall", "install", "postinstall"},
	}
)

var (
	managerField   = regexp.MustCompile(`^(npm|pnpm|yarn|bun)@v?(\d+(?:\.\d+)*)`)
	pnpmLockFormat = regexp.MustCompile(`(?m)^lockfileVersion:\s*'?"?(\d+)(?:\.(\d+))?`)
	berryFormat    = regexp.MustCompile(`(?m)^__metadata:\s*\n\s+version:\s*"?(\d+)`)
)

// nodeManager chooses the package manager: by packageManager, else by the lock file. It returns its lock file too,
// which is empty when there is none.
func (s *source) nodeManager(p *Plan, j *packageJSON) (manager, string) {
	field := managerField.FindStringSubmatch(j.PackageManager)
	var found []manager
	for _, m := range []manager{npmManager, pnpmManager, yarnManager, bunManager} {
		if s.first(m.locks...) != "" {
			found = append(found, m)
		}
	}
	m := npmManager
	switch {
	case len(found) > 0:
		m = found[0]
		for _, f := range found {
			if field != nil && f.name == field[1] {
				m = f
			}
		}
		for _, f := range found {
			if f.name != m.name {
				p.warn("%s is not used, since %s is there too", s.first(f.locks...), s.first(m.locks...))
			}
		}
		if field != nil && field[1] != m.name {
			p.warn("packageManager in package.json asks for %s, but there is a %s: %s is used", field[1], s.first(m.locks...), m.name)
		}
	case field != nil && field[1] == "pnpm":
		m = pnpmManager
	case field != nil && field[1] == "yarn":
		m = yarnManager
	case field != nil && field[1] == "bun":
		m = bunManager
	}
	lock := s.first(m.locks...)
	if m.name == "yarn" && s.isBerry(j, field, lock) {
		m = berryManager
	}
	return m, lock
}

// isBerry says whether a project uses a yarn later than 1.
func (s *source) isBerry(j *packageJSON, field []string, lock string) bool {
	if field != nil && field[1] == "yarn" {
		return !strings.HasPrefix(field[2]+".", "1.")
	}
	if v := j.Volta["yarn"]; v != "" {
		return !strings.HasPrefix(v+".", "1.")
	}
	if lock != "" {
		return s.mentions(lock, "__metadata:")
	}
	return s.has(".yarnrc.yml")
}

// managerVersion is the version to install: a major, or what was asked for
// exactly; empty: that of the image. It says why.
func (s *source) managerVersion(p *Plan, j *packageJSON, m manager, lock string, node int) string {
	if f := managerField.FindStringSubmatch(j.PackageManager); f != nil && f[1] == m.name {
		p.because("packageManager in package.json asks for %s %s", m.name, f[2])
		return f[2]
	}
	if v := j.Volta[m.name]; exactVersion.MatchString(v) {
		p.because("volta in package.json asks for %s %s", m.name, v)
		return v
	}
	preferred, why := s.lockMajor(m, lock, node)
	if want := j.Engines[m.name]; want != "" {
		major := firstInRange(want, append([]int{preferred}, m.majors...)...)
		if major == 0 {
			p.warn("engines in package.json asks for %s %s, which no known version fits: %d is used", m.name, want, preferred)
		} else if major != preferred {
			preferred, why = major, fmt.Sprintf("engines in package.json asks for %s %s", m.name, want)
		}
	}
	p.because("%s %d: %s", m.name, preferred, why)
	if m.program == "" && preferred == NPMFor(node) {
		return ""
	}
	return fmt.Sprint(preferred)
}

// lockMajor is the major version that a lock file is for, and why.
func (s *source) lockMajor(m manager, lock string, node int) (int, string) {
	if m.name == "npm" {
		return NPMFor(node), fmt.Sprintf("it comes with Node.js %d", node)
	}
	if lock == "" {
		return m.majors[0], "there is no lock file"
	}
	text, err := s.read(lock)
	if err != nil {
		return m.majors[0], "its lock file could not be read"
	}
	var major, minor int
	switch m.program {
	case "pnpm":
		if f := pnpmLockFormat.FindStringSubmatch(text); f != nil {
			fmt.Sscan(f[1], &major)
			fmt.Sscan(f[2], &minor)
			switch {
			case major >= 9:
				major = 9
			case major >= 6:
				major = 8
			case major == 5 && minor >= 4:
				major = 7
			default:
				major = 6
			}
			return major, fmt.Sprintf("%s is of its format %s", lock, strings.Trim(f[1]+"."+f[2], "."))
		}
	case berryManager.program:
		if f := berryFormat.FindStringSubmatch(text); f != nil {
			fmt.Sscan(f[1], &major)
			switch {
			case major >= 7:
				major = 4
			case major >= 5:
				major = 3
			default:
				major = 2
			}
			return major, fmt.Sprintf("%s is of its format %s", lock, f[1])
		}
	}
	return m.majors[0], lock + " is there"
}

// NPMFor is the major version of npm that comes with a major version of Node.js.
func NPMFor(node int) int {
	switch {
	case node >= 22:
		return 11
	case node >= 18:
		return 10
	case node >= 14:
		return 9
	}
	return 6
}
