package e2e

import (
	"path/filepath"
	"strings"
	"testing"
)

// TestOfficialImages deploys an app whose services begin as those of the official images of nginx, Redis and
// PostgreSQL do: as root, which makes its directories those of another user and becomes that one.
func TestOfficialImages(t *testing.T) {
	t.Parallel()
	name, dir := "official", t.TempDir()
	write(t, filepath.Join(dir, "Dockerfile"), `FROM debian
RUN apt-get update \
 && apt-get install -y --no-install-recommends nginx-light redis-server postgresql-common \
 && sed -ri 's/#(create_main_cluster) .*$/\1 = false/' /etc/postgresql-common/createcluster.conf \
 && apt-get install -y --no-install-recommends postgresql \
 && rm -rf /var/lib/apt/lists/* \
 && mkdir -p /data /pgdata
COPY --chmod=755 redis.sh postgres.sh /usr/local/bin/
`)
	write(t, filepath.Join(dir, "redis.sh"), `#!/bin/sh -e
cd /data
if [ "$(id -u)" = 0 ]; then
	find . \! -user redis -exec chown redis '{}' +
	exec setpriv --reuid=redis --regid=redis --clear-groups -- "$0"
fi
exec redis-server --bind 0.0.0.0 --protected-mode no --dir /data
`)
	write(t, filepath.Join(dir, "postgres.sh"), `#!/bin/sh -e
bin=$(dirname /usr/lib/postgresql/*/bin/initdb)
if [ "$(id -u)" = 0 ]; then
	install -d -o postgres -m 2775 /var/run/postgresql
	chown -R postgres /pgdata
	chmod 700 /pgdata
	exec setpriv --reuid=postgres --regid=postgres --init-groups -- "$0"
fi
"$bin/initdb" -D /pgdata >/dev/null
exec "$bin/postgres" -D /pgdata -c listen_addresses='*'
`)
	write(t, filepath.Join(dir, "app.toml"), `[services.web]
command = ["nginx", "-g", "daemon off;"]
port = 80

[services.cache]
command = "redis.sh"
port = 6379

[services.db]
command = "postgres.sh"
port = 5432
`)
	shared.r(t, dir, "app", "deploy", "--app", name)
	shared.answers(t, name, "/", "Welcome to nginx")

	var sandboxes []struct {
		ID   string
		Spec struct{ Service string }
	}
	shared.json(t, &sandboxes, "sandbox", "list", "--app", name)
	ids := map[string]string{}
	for _, sb := range sandboxes {
		ids[sb.Spec.Service] = sb.ID
	}
	for service, c := range map[string]struct{ command, want string }{
		// The master of nginx is of root, and has the workers of another user end.
		"web":   {"nginx -s reload && cat /proc/[0-9]*/status 2>/dev/null | grep -E '^(Name|Uid):' | paste - - | grep nginx", "33"},
		"cache": {"redis-cli set a b && redis-cli get a", "b"},
		"db":    {"setpriv --reuid=postgres --regid=postgres --clear-groups psql -h /var/run/postgresql -Atc 'select 6*7'", "42"},
	} {
		if out := shared.r(t, "", "sandbox", "exec", ids[service], "--", "/bin/sh", "-c", c.command); !strings.Contains(out, c.want) {
			t.Errorf("%s in %s: no %q in %s", c.command, service, c.want, out)
		}
	}
	shared.answers(t, name, "/", "Welcome to nginx")
	shared.r(t, "", "app", "delete", name, "--yes")
}
