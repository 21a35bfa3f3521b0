package stack

import "testing"

func TestNodePlans(t *testing.T) {
	checkPlans(t, "node", []planTest{
		{"node", "-- package.json --\n{\"scripts\":{\"start\":\"node server.js\"},\"dependencies\":{\"express\":\"5\"}}\n-- package-lock.json --\n{}\n",
			[]string{"FROM runtime/node:22", "COPY package.json package-lock.json ./", "npm ci --omit=dev", `CMD ["/bin/sh","-c","exec node server.js"]`, "!\nCOPY . ."}, []string{"npm ci", "start script: node server.js"}, "web:8080:"},
		{"node, build script", "-- package.json --\n{\"scripts\":{\"start\":\"node dist/x.js\",\"build\":\"tsc\"},\"engines\":{\"node\":\">=20 <21\"}}\n",
			[]string{"FROM runtime/node:20", "RUN npm run build", "COPY --from=build"}, []string{"no lock file: x", "build script: tsc"}[1:], "web:8080:"},
		{"node, pnpm", "-- package.json --\n{\"main\":\"i.js\",\"packageManager\":\"pnpm@10.1.0\"}\n-- pnpm-lock.yaml --\n-- i.js --\n", []string{"npm install -g pnpm@10.1.0", "pnpm install --frozen-lockfile --prod", "exec node i.js"}, nil, "web:8080:"},
		{"node, yarn", "-- package.json --\n{}\n-- yarn.lock --\n-- index.js --\n", []string{"yarn install --frozen-lockfile --production", "exec node index.js"}, nil, "web:8080:"},
		{"node, prestart", "-- package.json --\n{\"scripts\":{\"prestart\":\"x\",\"start\":\"node s.js\"}}\n", []string{"npm run start"}, nil, "web:8080:"},
		{"node, single-page app", "-- package.json --\n{\"scripts\":{\"build\":\"vite build\",\"start\":\"vite\"},\"devDependencies\":{\"vite\":\"6\"}}\n-- package-lock.json --\n",
			[]string{"FROM runtime/static", "/app/dist/ /site/", "!npm ci --omit=dev"}, []string{"for development"}, "web:8080:"},
		{"node, version file", "-- package.json --\n{\"main\":\"i.js\"}\n-- i.js --\n-- .nvmrc --\nv20.11.1\n", []string{"FROM runtime/node:20.11.1"}, []string{".nvmrc"}, "web:8080:"},
		{"node, Procfile", "-- package.json --\n{}\n-- Procfile --\nweb: node a.js\nworker: node b.js\n", nil, []string{"Procfile"}, "web:8080:exec_node_a.js worker::exec_node_b.js"},

		// Scripts of the project that run when it is installed need its sources and development dependencies.
		{"node, postinstall", "-- package.json --\n{\"scripts\":{\"start\":\"node s.js\",\"postinstall\":\"patch-package\"},\"devDependencies\":{\"patch-package\":\"8\"}}\n-- package-lock.json --\n-- patches/a.patch --\n",
			[]string{"COPY package.json package-lock.json ./\nCOPY patches ./patches\nRUN node -e", "npm ci && mkdir", "!npm ci --omit=dev", "COPY . .\nRUN npm run postinstall\n", "npm prune --omit=dev"},
			[]string{"postinstall run once the sources are there", "development dependencies are removed"}, ""},
		{"node, prepare with tsc", "-- package.json --\n{\"main\":\"i.js\",\"scripts\":{\"prepare\":\"tsc\"},\"devDependencies\":{\"typescript\":\"5\"}}\n-- i.js --\n-- yarn.lock --\n# yarn lockfile v1\n",
			[]string{"RUN yarn run prepare\n", "yarn install --production --frozen-lockfile --ignore-scripts"}, nil, ""},
		{"node, husky", "-- package.json --\n{\"main\":\"i.js\",\"scripts\":{\"prepare\":\"husky || true\"},\"devDependencies\":{\"husky\":\"9\"}}\n-- i.js --\n-- package-lock.json --\n",
			[]string{"HUSKY=0", "npm ci --omit=dev", "!run prepare", "RUN node -e"}, nil, ""},
		{"node, prisma generate", "-- package.json --\n{\"scripts\":{\"start\":\"node s.js\",\"postinstall\":\"prisma generate\"},\"dependencies\":{\"@prisma/client\":\"6\"},\"devDependencies\":{\"prisma\":\"6\"}}\n-- package-lock.json --\n-- prisma/schema.prisma --\n",
			[]string{"COPY prisma ./prisma\n", "RUN npm run postinstall\n", "openssl"}, []string{"run with openssl"}, ""},
		{"node, start needs development dependencies", "-- package.json --\n{\"scripts\":{\"start\":\"cross-env A=1 tsx src/server.ts\"},\"devDependencies\":{\"tsx\":\"4\",\"cross-env\":\"7\",\"jest\":\"29\"}}\n-- package-lock.json --\n",
			[]string{"npm ci && mkdir", "!--omit=dev"}, []string{"development dependencies stay: what runs needs cross-env, tsx"}, ""},
		{"node, a worker needs development dependencies", "-- package.json --\n{\"scripts\":{\"start\":\"node s.js\",\"work\":\"ts-node w.ts\"},\"devDependencies\":{\"ts-node\":\"10\"}}\n-- package-lock.json --\n-- Procfile --\nweb: node s.js\nworker: npm run work\n",
			[]string{"!--omit=dev"}, []string{"what runs needs ts-node"}, ""},
		{"node, loader of a dependency", "-- package.json --\n{\"scripts\":{\"start\":\"node -r ts-node/register s.ts\"},\"dependencies\":{\"ts-node\":\"10\"},\"devDependencies\":{\"jest\":\"1\"}}\n-- package-lock.json --\n",
			[]string{"npm ci --omit=dev"}, []string{"!stay"}, ""},
		{"node, the release command needs development dependencies", "-- package.json --\n{\"scripts\":{\"start\":\"node s.js\"},\"devDependencies\":{\"prisma\":\"6\"}}\n-- package-lock.json --\n-- Procfile --\nrelease: npx prisma migrate deploy\n",
			[]string{"!--omit=dev"}, []string{"what runs needs prisma", "the release command runs once"}, "web:8080:"},
		{"node, local dependency", "-- package.json --\n{\"main\":\"i.js\",\"dependencies\":{\"x\":\"file:./x\"}}\n-- i.js --\n-- package-lock.json --\n", []string{"COPY . .\nRUN --mount=type=cache,target=/root/.npm NODE_ENV=production npm ci"}, nil, ""},

		// Package managers, and which version of them.
		{"node, pnpm 8 by its lock file", "-- package.json --\n{\"main\":\"i.js\"}\n-- pnpm-lock.yaml --\nlockfileVersion: '6.1'\n-- i.js --\n", []string{"npm install -g pnpm@8\n"}, []string{"pnpm 8: pnpm-lock.yaml is of its format 6.1"}, ""},
		{"node, pnpm 7 by its lock file", "-- package.json --\n{\"main\":\"i.js\"}\n-- pnpm-lock.yaml --\nlockfileVersion: 5.4\n-- i.js --\n", []string{"npm install -g pnpm@7\n"}, nil, ""},
		{"node, pnpm 9 by its lock file", "-- package.json --\n{\"main\":\"i.js\"}\n-- pnpm-lock.yaml --\nlockfileVersion: '9.0'\n-- i.js --\n", []string{"npm install -g pnpm@9\n"}, nil, ""},
		{"node, pnpm by engines", "-- package.json --\n{\"main\":\"i.js\",\"engines\":{\"pnpm\":\">=10\"}}\n-- pnpm-lock.yaml --\nlockfileVersion: '9.0'\n-- i.js --\n", []string{"npm install -g pnpm@10\n"}, []string{"engines in package.json asks for pnpm >=10"}, ""},
		{"node, npm by engines", "-- package.json --\n{\"main\":\"i.js\",\"engines\":{\"npm\":\"^8\"}}\n-- package-lock.json --\n-- i.js --\n", []string{"npm install -g npm@8\n"}, nil, ""},
		{"node, npm that is there", "-- package.json --\n{\"main\":\"i.js\",\"engines\":{\"npm\":\">=8\"}}\n-- package-lock.json --\n-- i.js --\n", []string{"!npm install -g"}, []string{"npm 11: it comes with Node.js 22"}, ""},
		{"node, npm by packageManager", "-- package.json --\n{\"main\":\"i.js\",\"packageManager\":\"npm@10.9.0\"}\n-- package-lock.json --\n-- i.js --\n", []string{"npm install -g npm@10.9.0\n"}, nil, ""},
		{"node, volta", "-- package.json --\n{\"main\":\"i.js\",\"volta\":{\"node\":\"20.1.0\",\"yarn\":\"1.22.19\"}}\n-- yarn.lock --\n# yarn lockfile v1\n-- i.js --\n", []string{"runtime/node:20.1.0", "yarn@1.22.19"}, nil, ""},
		{"node, yarn classic locks its cache", "-- package.json --\n{\"main\":\"i.js\"}\n-- yarn.lock --\n# yarn lockfile v1\n-- i.js --\n", []string{"target=/usr/local/share/.cache/yarn,sharing=locked NODE_ENV", "NODE_ENV=production yarn install --frozen-lockfile --production"}, nil, ""},
		{"node, yarn berry", "-- package.json --\n{\"main\":\"i.js\",\"devDependencies\":{\"jest\":\"1\"}}\n-- yarn.lock --\n__metadata:\n  version: 8\n-- i.js --\n-- .yarnrc.yml --\n-- .yarn/releases/yarn-4.cjs --\n",
			[]string{"npm install -g @yarnpkg/cli-dist@4", "YARN_NODE_LINKER=node-modules", "COPY .yarn ./.yarn", "yarn install --immutable", "workspaces focus --all --production", "target=/root/.yarn,sharing=locked"}, []string{"yarn 4", "not into a .pnp.cjs"}, ""},
		{"node, yarn 3 cannot prune", "-- package.json --\n{\"main\":\"i.js\",\"devDependencies\":{\"jest\":\"1\"}}\n-- yarn.lock --\n__metadata:\n  version: 6\n-- i.js --\n", []string{"cli-dist@3", "!focus"}, []string{"development dependencies stay: yarn cannot"}, ""},
		{"node, two lock files", "-- package.json --\n{\"main\":\"i.js\",\"packageManager\":\"pnpm@9.1.0\"}\n-- pnpm-lock.yaml --\n-- package-lock.json --\n-- i.js --\n", []string{"pnpm install"}, []string{"package-lock.json is not used, since pnpm-lock.yaml is there too"}, ""},
		{"node, packageManager without its lock file", "-- package.json --\n{\"main\":\"i.js\",\"packageManager\":\"pnpm@9.1.0\"}\n-- i.js --\n", []string{"pnpm@9.1.0", "pnpm install --no-frozen-lockfile"}, nil, ""},
		{"node, the package manager runs the app", "-- package.json --\n{\"scripts\":{\"prestart\":\"x\",\"start\":\"node s.js\"}}\n-- pnpm-lock.yaml --\n", []string{"\nFROM base\n", "pnpm run start"}, nil, ""},
		{"node, lts name", "-- package.json --\n{\"main\":\"i.js\"}\n-- i.js --\n-- .nvmrc --\nlts/iron\n", []string{"runtime/node:20 "}, []string{".nvmrc asks for Node.js lts/iron: 20"}, ""},
		{"node, .tool-versions", "-- package.json --\n{\"main\":\"i.js\"}\n-- i.js --\n-- .tool-versions --\npython 3.1\nnodejs 20.5.1 # x\n", []string{"runtime/node:20.5.1"}, nil, ""},
		{"node, engines of long ago", "-- package.json --\n{\"main\":\"i.js\",\"engines\":[\"node >= 0.8\"]}\n-- i.js --\n", []string{"runtime/node:22"}, nil, ""},

		// What Debian has to give.
		{"node, packages when it is built too", "-- package.json --\n{\"main\":\"i.js\"}\n-- i.js --\n-- app.toml --\n[build]\npackages = [\"libpq-dev\"]\n",
			[]string{"FROM base AS build\nRUN apt-get update && apt-get install -y --no-install-recommends libpq-dev ", "\nFROM runtime/node:22\nRUN apt-get update && apt-get install -y --no-install-recommends libpq-dev "}, []string{"when it is built and when it runs"}, ""},
		{"node, native module", "-- package.json --\n{\"main\":\"i.js\",\"dependencies\":{\"better-sqlite3\":\"11\"}}\n-- i.js --\n-- package-lock.json --\n", []string{"AS build\nRUN apt-get update && apt-get install -y --no-install-recommends g++ make python3 ", "npm_config_nodedir=/usr/local", "\nFROM runtime/node:22\nENV"}, []string{"better-sqlite3: installed with g++ make python3"}, ""},
		{"node, native module deeper down", "-- package.json --\n{\"main\":\"i.js\",\"dependencies\":{\"x\":\"1\"}}\n-- i.js --\n-- package-lock.json --\n{\"node_modules/y\":{\"dependencies\":{\"prebuild-install\": \"1\"}}}\n", []string{"g++ make python3"}, []string{"what depends on prebuild-install"}, ""},
		{"node, library to run", "-- package.json --\n{\"main\":\"i.js\",\"dependencies\":{\"canvas\":\"2\"}}\n-- i.js --\n", []string{"libcairo2-dev", "libcairo2 "}, nil, ""},
		{"node, dependency from git", "-- package.json --\n{\"main\":\"i.js\",\"dependencies\":{\"x\":\"github:a/b\"}}\n-- i.js --\n", []string{"ca-certificates git"}, []string{"git repositories"}, ""},

		// Monorepos.
		{"node, workspace", "-- package.json --\n{\"workspaces\":[\"apps/*\",\"libs/**\",\"!libs/old\"],\"scripts\":{\"build\":\"turbo build\"}}\n-- package-lock.json --\n-- apps/web/package.json --\n{\"scripts\":{\"start\":\"node s.js\"},\"devDependencies\":{\"x\":\"1\"}}\n-- libs/a/package.json --\n{}\n-- libs/b/c/package.json --\n{}\n-- libs/old/package.json --\n{}\n",
			[]string{"COPY apps/web/package.json ./apps/web/\nCOPY libs/a/package.json ./libs/a/\nCOPY libs/b/c/package.json ./libs/b/c/\n", "!libs/old", "RUN npm run build\n", "WORKDIR /app/apps/web\nUSER", "exec node s.js", "PATH=/app/apps/web/node_modules/.bin:/app/node_modules/.bin:"},
			[]string{"of the workspaces only apps/web has a start script"}, ""},
		{"node, workspace that was said", "-- package.json --\n{\"workspaces\":{\"packages\":[\"apps/*\"]}}\n-- yarn.lock --\n-- apps/a/package.json --\n{\"scripts\":{\"start\":\"a\"}}\n-- apps/b/package.json --\n{\"scripts\":{\"start\":\"b\",\"build\":\"make\"}}\n-- app.toml --\n[build]\npackage = \"apps/b\"\n",
			[]string{"RUN cd apps/b && yarn run build\n", "exec b"}, []string{"app.toml says that the app is the workspace apps/b"}, ""},
		{"node, workspace of pnpm", "-- package.json --\n{}\n-- pnpm-workspace.yaml --\npackages:\n  - 'packages/*'\n-- pnpm-lock.yaml --\n-- packages/web/package.json --\n{\"scripts\":{\"start\":\"node s.js\"},\"devDependencies\":{\"x\":\"1\"}}\n-- packages/jobs/package.json --\n{\"scripts\":{\"start\":\"node j.js\"}}\n",
			[]string{"WORKDIR /app/packages/web", "COPY package.json pnpm-lock.yaml pnpm-workspace.yaml ./"}, []string{"chosen among packages/jobs, packages/web"}, ""},
		{"node, workspace with install scripts", "-- package.json --\n{\"workspaces\":[\"a\"],\"scripts\":{\"start\":\"node x\"}}\n-- package-lock.json --\n-- a/package.json --\n{\"scripts\":{\"prepare\":\"tsc\"}}\n", []string{"COPY . .\nRUN --mount=type=cache,target=/root/.npm npm ci &&", "!RUN node -e"}, nil, ""},
		{"node, static site of a workspace", "-- package.json --\n{\"workspaces\":[\"site\"]}\n-- package-lock.json --\n-- site/package.json --\n{\"scripts\":{\"build\":\"vite build\"},\"devDependencies\":{\"vite\":\"6\"}}\n-- app.toml --\n[build]\npackage = \"site\"\n", []string{"/app/site/dist/ /site/"}, nil, ""},

		// Sites.
		{"node, single-page app has its fallback", "-- package.json --\n{\"scripts\":{\"build\":\"vite build\"},\"devDependencies\":{\"vite\":\"6\"}}\n-- package-lock.json --\n", []string{"ENV STATIC_FALLBACK=/index.html\n"}, []string{"single-page app"}, ""},
		{"node, no fallback wanted", "-- package.json --\n{\"scripts\":{\"build\":\"vite build\"},\"devDependencies\":{\"vite\":\"6\"}}\n-- app.toml --\n[build]\nfallback = \"none\"\n", []string{"!FALLBACK"}, []string{"!single-page"}, ""},
		{"node, site of pages", "-- package.json --\n{\"scripts\":{\"build\":\"astro build\"},\"dependencies\":{\"astro\":\"5\"}}\n", []string{"/app/dist/ /site/", "!FALLBACK"}, nil, ""},
		{"node, output that vite says", "-- package.json --\n{\"scripts\":{\"build\":\"vite build\"},\"devDependencies\":{\"vite\":\"6\"}}\n-- vite.config.ts --\nexport default { build: { outDir: './out/web' } }\n", []string{"/app/out/web/ /site/"}, nil, ""},
		{"node, angular", "-- package.json --\n{\"scripts\":{\"build\":\"ng build\",\"start\":\"ng serve\"},\"devDependencies\":{\"@angular/cli\":\"19\"}}\n-- angular.json --\n{\"projects\":{\"shop\":{\"architect\":{\"build\":{\"builder\":\"@angular/build:application\",\"options\":{}}}}}}\n", []string{"/app/dist/shop/browser/ /site/", "FALLBACK"}, nil, ""},
	})
}
