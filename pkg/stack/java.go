package stack

import (
	"fmt"
	"path"
	"regexp"
	"strings"

	"miren.dev/runtime/pkg/appconfig"
	"miren.dev/runtime/pkg/errs"
)

var gradleFiles = []string{"build.gradle.kts", "build.gradle", "settings.gradle.kts", "settings.gradle"}

func hasJava(s *source) bool { return s.first(append([]string{"pom.xml"}, gradleFiles...)...) != "" }

// Where a source asks for a version of Java.
var (
	mavenJava  = regexp.MustCompile(`<(?:java\.version|maven\.compiler\.(?:release|target|source)|release)>\s*(?:1\.)?(\d+)\s*<`)
	gradleJava = regexp.MustCompile(`JavaLanguageVersion\.of\(\s*(\d+)\s*\)|jvmToolchain\(\s*(\d+)\s*\)|(?:source|target)Compatibility\s*=\s*(?:JavaVersion\.VERSION_)?['"]?(?:1[._])?(\d+)`)
	systemJava = regexp.MustCompile(`(?m)^\s*java\.runtime\.version\s*=\s*(?:1\.)?(\d+)`)
	sdkmanJava = regexp.MustCompile(`(?m)^\s*java\s*=\s*(\d+)`)
	digits     = regexp.MustCompile(`\d+`)
)

// javaBuild is how a source of Java becomes a program.
type javaBuild struct {
	file    string   // that decides it
	command string   // builds it
	cache   []string // folders that builds share
	output  string   // folder with the program, below the source
	extra   []string // packages for building
}

// layouts of the program that a build makes.
const (
	gradleInstall = "build/install"
	quarkusApp    = "target/quarkus-app"
)

func planJava(s *source, p *Plan) error {
	module := s.cfg.Build.Package
	if module == "." {
		module = ""
	}
	build, text, err := s.javaBuild(p, module)
	if err != nil {
		return err
	}
	tag, err := s.javaVersion(p, build.file, text)
	if err != nil {
		return err
	}
	s.saysPackages(p)
	if c := s.cfg.Build.Command; c != "" {
		build.command = c
		p.because("%s says that it is built by %q", s.cfg.File, c)
	}
	from, image := "runtime/java-build"+tag, "runtime/java"+tag
	var b strings.Builder
	fmt.Fprintf(&b, "FROM %s AS build\n%s%sWORKDIR /src\nCOPY . .\nRUN", from, s.args(), s.packages(build.extra...))
	for _, dir := range build.cache {
		fmt.Fprintf(&b, " --mount=type=cache,target=%s,sharing=locked", dir)
	}
	fmt.Fprintf(&b, " with-authorities %s\n", build.command)
	output := path.Join(module, build.output)
	p.fact(FactInstall, "with the build", build.file)
	p.fact(FactBuild, build.command, build.file)
	options := "-XX:MaxRAMPercentage=75 " + javaPort(text) + "$JAVA_OPTS "
	command := ""
	switch {
	case s.ownsCommands():
		// Commands name what the build makes where the build makes it.
		fmt.Fprintf(&b, "RUN mkdir -p /out && cp -r --parents %s /out/\n", words(s.javaOutputs(output)))
	case build.output == gradleInstall:
		fmt.Fprintf(&b, "RUN mkdir /out && cp -r %s/*/. /out/ && set -- $(find /out/bin -type f ! -name '*.bat') && test $# = 1 && ln -s \"${1#/out/}\" /out/start\n", quote(output))
		command = "JAVA_OPTS=\"" + strings.TrimSpace(options) + "\" exec ./start"
	case build.output == quarkusApp:
		fmt.Fprintf(&b, "RUN mkdir /out && cp -r %s/. /out/\n", quote(output))
		command = "exec java " + options + "-jar quarkus-run.jar"
	default:
		// The jars that a build makes besides the program are told by their names.
		fmt.Fprintf(&b, "RUN mkdir /out && set -- $(find %s -maxdepth 1 '(' -name '*.jar' -o -name '*.war' ')' ! -name '*-sources.jar' ! -name '*-javadoc.jar' ! -name '*-tests.jar' ! -name '*-plain.?ar' ! -name 'original-*.jar') && "+
			"if [ $# != 1 ]; then echo \"one jar is expected in %s, found: $*\" >&2; exit 1; fi && cp \"$1\" /out/app.jar\n", quote(output), output)
		command = "exec java " + options + "-jar app.jar"
	}
	fmt.Fprintf(&b, "\nFROM %s\n%sCOPY --from=build --chown=%s /out /app/\nWORKDIR /app\nENV PORT=%d\nUSER %s\n", image, s.packages(), owner, appconfig.DefaultPort, owner)
	if command != "" {
		fmt.Fprintf(&b, "CMD %s\n", jsonList([]string{"/bin/sh", "-c", command}))
		p.fact(FactStart, command, build.file)
	}
	p.Dockerfile, p.Generated, p.Services = b.String(), true, web(appconfig.DefaultPort)
	p.Bases = []string{from, image}
	return nil
}

// builtFile is what a command says of a file that Maven or Gradle makes, with its folder.
var builtFile = regexp.MustCompile(`[\w./-]*\b(?:target|build/libs|build/install)(?:/|\b)`)

// javaOutputs are the folders of built files that commands of services name, else the one that is given.
func (s *source) javaOutputs(output string) []string {
	var dirs []string
	for _, svc := range s.cfg.Services {
		for _, dir := range builtFile.FindAllString(commandLine(svc.Command), -1) {
			dirs = append(dirs, quote(path.Clean(strings.TrimPrefix(dir, "/app/"))))
		}
	}
	if len(dirs) == 0 {
		dirs = []string{quote(path.Clean(output))}
	}
	return unique(dirs)
}

// javaPort are the options by which a framework listens on PORT; empty for one that reads it itself.
func javaPort(text string) string {
	switch {
	case strings.Contains(text, "spring-boot") || strings.Contains(text, "org.springframework.boot"):
		return "-Dserver.port=$PORT "
	case strings.Contains(text, "quarkus"):
		return "-Dquarkus.http.port=$PORT -Dquarkus.http.host=0.0.0.0 "
	case strings.Contains(text, "micronaut"):
		return "-Dmicronaut.server.port=$PORT "
	}
	return ""
}

// javaBuild finds how it is built, and returns what the files of the build say too.
func (s *source) javaBuild(p *Plan, module string) (*javaBuild, string, error) {
	if module != "" && s.first(path.Join(module, "pom.xml"), path.Join(module, "build.gradle"), path.Join(module, "build.gradle.kts")) == "" {
		return nil, "", errs.New(errs.InvalidArgument, "%s is no module: it has neither pom.xml nor build.gradle", module).
			WithHint("build.package in %s is the folder of the app's module", s.cfg.File)
	}
	text := ""
	for _, f := range append([]string{path.Join(module, "pom.xml"), path.Join(module, "build.gradle"), path.Join(module, "build.gradle.kts"), "gradle.properties"}, append([]string{"pom.xml"}, gradleFiles...)...) {
		if s.has(f) {
			t, err := s.read(f)
			if err != nil {
				return nil, "", err
			}
			text += t + "\n"
		}
	}
	if s.has("pom.xml") {
		p.because("pom.xml is there: built by Maven, without its tests")
		b := &javaBuild{file: "pom.xml", command: "mvn -B -ntp -DskipTests package", cache: []string{"/root/.m2"}, output: "target"}
		if module != "" {
			b.command = "mvn -B -ntp -DskipTests -pl " + quote(module) + " -am package"
		} else if strings.Contains(text, "<modules>") && !s.ownsCommands() {
			return nil, "", errs.New(errs.InvalidArgument, "pom.xml has several modules, and which of them is the app is not known").
				WithHint("say which in .runtime/app.toml:\n[build]\npackage = \"<folder of the module>\"")
		}
		switch {
		case strings.Contains(text, "quarkus-maven-plugin"):
			b.output = quarkusApp
		case strings.Contains(text, "spring-boot-maven-plugin"), strings.Contains(text, "maven-shade-plugin"), strings.Contains(text, "mainClass"),
			s.ownsCommands():
		default:
			return nil, "", errs.New(errs.InvalidArgument, "the jar that pom.xml makes has no main class, so nothing can be started").
				WithHint("add spring-boot-maven-plugin or maven-shade-plugin (with mainClass), a Procfile with a line `web: <command>`, or a Dockerfile")
		}
		return b, text, nil
	}
	file := s.first("build.gradle.kts", "build.gradle", "settings.gradle.kts", "settings.gradle")
	b := &javaBuild{file: file, cache: []string{"/root/.gradle"}, output: "build/libs"}
	program := "gradle"
	if s.has("gradlew") {
		program = "sh ./gradlew"
		p.because("gradlew is there: built by the Gradle that it fetches")
	} else {
		b.extra = []string{"gradle"}
		p.because("there is no gradlew: built by the Gradle of the server's distribution")
		p.warn("the Gradle of the distribution may be old: `gradle wrapper` adds the version that the project needs")
	}
	task := "installDist"
	switch {
	case strings.Contains(text, "org.springframework.boot"):
		task = "bootJar"
	case strings.Contains(text, "shadow"):
		task = "shadowJar"
	case applicationPlugin.MatchString(text):
		b.output = gradleInstall
	default:
		return nil, "", errs.New(errs.InvalidArgument, "%s makes no program that can be started", file).
			WithHint("apply the plugin application or org.springframework.boot, or add a Dockerfile")
	}
	if module != "" {
		task = ":" + strings.ReplaceAll(module, "/", ":") + ":" + task
	}
	b.command = program + " --no-daemon --console=plain " + task
	return b, text, nil
}

var applicationPlugin = regexp.MustCompile(`(?m)id[\s(]*['"]application['"]|apply plugin:\s*['"]application['"]|^\s*application\s*$|mainClass`)

// javaVersion is what comes after the name of an image; empty when any version will do.
func (s *source) javaVersion(p *Plan, file, text string) (string, error) {
	want, where := digits.FindString(s.cfg.Build.Version), s.cfg.File
	if s.cfg.Build.Version != "" && want == "" {
		return "", errs.New(errs.InvalidArgument, "%s asks for Java %q, which is not a version", where, s.cfg.Build.Version).WithHint("write one such as 21")
	}
	for _, f := range []struct {
		name    string
		pattern *regexp.Regexp
	}{{"system.properties", systemJava}, {".java-version", digits}, {".sdkmanrc", sdkmanJava}} {
		if want != "" || !s.has(f.name) {
			continue
		}
		said, err := s.read(f.name)
		if err != nil {
			return "", err
		}
		if m := f.pattern.FindStringSubmatch(said); m != nil {
			want, where = m[len(m)-1], f.name
		}
	}
	if want == "" {
		for _, pattern := range []*regexp.Regexp{mavenJava, gradleJava} {
			if m := pattern.FindStringSubmatch(text); m != nil && want == "" {
				want, where = strings.Join(m[1:], ""), file
			}
		}
	}
	if want == "" {
		p.because("no version of Java is asked for: that of the server's distribution")
		p.fact(FactVersion, "Java of the server's distribution", "")
		return "", nil
	}
	p.because("%s asks for Java %s: that or a later one, as the server has it", where, want)
	p.fact(FactVersion, "Java "+want, where)
	return ":" + want + "-", nil
}
