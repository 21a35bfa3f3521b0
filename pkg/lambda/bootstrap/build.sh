# Compiles a handler and runs it: build.sh DIR function|main. A function is compiled together with its bootstrap; a
# program that calls lambda.Start gets AWS Lambda's runtime interface.
set -e
here=$(cd "$1" && pwd)
[ -e go.mod ] || go mod init handler 2>/dev/null
modules=-mod=mod # what go.mod and go.sum do not state is added
[ ! -d vendor ] || modules=-mod=vendor
if [ "$2" = function ]; then
	cp "$here/bootstrap.go.txt" ./zz_sandbox_run.go
fi
if ! go build "$modules" -o "$here/handler" . >"$here/build.log" 2>&1; then
	cat "$here/build.log" >&2
	printf '{"outcome":"syntax","error":{"errorMessage":"go build failed","errorType":"Runtime.BuildFailed","stackTrace":[]}}' >"${EXECUTION_RESULT:-$here/result.json}"
	exit 0
fi
if [ "$2" = function ]; then
	exec "$here/handler" "$here"
fi
cp "$here/runtime.go.txt" "$here/runtime.go"
go build -o "$here/runtime" "$here/runtime.go"
exec "$here/runtime" "$here" "$here/handler"
