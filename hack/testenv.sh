# shellcheck shell=bash
# Sourced from the root of the checkout by the scripts that run Go tests: the
# environment of every test, and which packages need root.

# Without paths of this checkout in them, builds and test results are shared by all checkouts of a machine.
export GOFLAGS="${GOFLAGS:+$GOFLAGS }-trimpath"
go=$(hack/go.sh)
PATH="$PWD/bin:$(dirname "$go"):$PATH"
# With RUNTIME_TEST_ALL a test that lacks a tool fails instead of being skipped.
export PATH RUNTIME_TEST_ALL=1

# Packages whose tests make network namespaces, mounts or cgroups.
root_re='/(components|testsupport|controllers/(retention|sandbox)|cli/disk|lsvd/frontend/(fuse|loop|holder))(/|$)'
