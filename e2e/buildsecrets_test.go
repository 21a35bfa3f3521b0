package e2e

import (
	"net/http"
	"regexp"
	"strings"
	"testing"
)

// testBuildSecretsGuide builds an app with a secret that its step prints and uses, and that its image and log do not have.
func testBuildSecretsGuide(t *testing.T, g *guide) {
	const token = "npm_4k2j"
	g.file("tokens/.runtime/app.toml", "[build]\nsecrets = [\"NPM_TOKEN\"]\n")
	g.file("tokens/Dockerfile", `FROM debian
RUN --mount=type=secret,id=npm-token echo "token $(cat /run/secrets/npm-token)"; wc -c < /run/secrets/npm-token > /length
CMD ["perl", "-MIO::Socket::INET", "-e", "$s = IO::Socket::INET->new(LocalPort => $ENV{PORT}, Listen => 9, ReuseAddr => 1); while ($c = $s->accept) { <$c>; print $c \"HTTP/1.0 200 OK\\r\\n\\r\\nlength \" . `+"`cat /length`"+` }"]
`)
	g.dir += "/tokens" // a name that no other guide has: names below localhost know no projects
	g.run("r app create", "created tokens")
	export := g.next("export NPM_TOKEN")
	g.env = append(g.env, strings.Fields(export)[1])
	g.run("r app env set")
	res := g.try("r deploy")
	if res.Code != 0 || !strings.Contains(res.Stderr, "token ****") && !strings.Contains(res.Stdout, "token ****") {
		t.Errorf("with it: %s", res)
	}
	if strings.Contains(res.Stdout+res.Stderr, token) {
		t.Errorf("the output has the secret: %s", res)
	}
	host := regexp.MustCompile(`http://([^/: ]+)`).FindStringSubmatch(res.Stdout + res.Stderr)
	if host == nil {
		t.Fatalf("no address: %s", res)
	}
	if code, body, err := g.s.getHost(host[1], "/"); err != nil || code != http.StatusOK || body != "length 8\n" {
		t.Errorf("%s answers %d %q, %v", host[1], code, body, err)
	}
}
