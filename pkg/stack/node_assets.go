package stack

import (
	"fmt"
	"strings"

	"miren.dev/runtime/pkg/appconfig"
)

// nodeAssets is a stage of a Dockerfile that builds what an app of another language serves to browsers, and the image that it
// begins from; empty without a package.json that has a build script.
func (s *source) nodeAssets(p *Plan) (stage, from string, err error) {
	if !s.has("package.json") {
		return "", "", nil
	}
	root, err := s.readPackage(".")
	if err != nil {
		return "", "", err
	}
	if root.Scripts["build"] == "" {
		p.because("package.json has no build script: Node.js is not used")
		return "", "", nil
	}
	// The settings of [build] are those of the other language.
	cfg := *s.cfg
	cfg.Build = appconfig.Build{Args: s.cfg.Build.Args}
	of := &source{s.FS, &cfg}
	a := &nodeApp{s: of, p: p, root: root, app: root, dir: ".", workspaces: of.workspaces(root)}
	version, err := of.nodeVersion(p, root)
	if err != nil {
		return "", "", err
	}
	a.m, a.lock = of.nodeManager(p, root)
	major := 0
	fmt.Sscan(version, &major)
	a.chooseManager(major)
	a.chooseBuild()
	a.findModules()
	from = "runtime/node:" + version
	var b strings.Builder
	fmt.Fprintf(&b, "FROM %s AS assets\n%s%sENV HUSKY=0 NPM_CONFIG_UPDATE_NOTIFIER=false NPM_CONFIG_FUND=false NPM_CONFIG_AUDIT=false\n%sWORKDIR /app\n", from, of.packages(a.compile...), of.args(), a.m.env)
	if a.setup != "" {
		fmt.Fprintf(&b, "RUN --mount=type=cache,target=/root/.npm %s\n", a.setup)
	}
	a.writeInstall(&b, true)
	a.writeBuild(&b, false, nil)
	p.because("what the build script of package.json makes is there when the app runs; Node.js is not")
	return b.String() + "\n", from, nil
}
