npm install --global --cache /tmp/npm --no-audit --no-fund --loglevel=error typescript@7.0.2 tsx@4.23.15 esbuild@0.28.2
