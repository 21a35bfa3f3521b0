/**
 * The commands of the module's functions, as data: the image, packages, caches and
 * commands. It needs no Dagger, so that a test can compare it with the Makefile
 * and the scripts, which do the work.
 */

/** A directory that is kept from one run to the next. */
export interface Cache {
  /** Name of the cache volume. */
  key: string
  /** Mount point. */
  path: string
}

/** Commands that run one after the other, in the checkout, as root. */
export interface Target {
  /** Purpose of the function. */
  description: string
  commands: string[][]
  /**
   * Whether the commands make network namespaces, mounts and cgroups, as
   * sandboxes do. Dagger then runs them with all capabilities.
   */
  privileged: boolean
}

/** Debian, on which everything is developed and tested. */
export const image = "debian:bookworm"

/** Path of the checkout in the container. */
export const checkout = "/src"

/** Parts of the checkout that are left out: the results of builds. */
export const exclude = ["bin", "tmp", "**/node_modules"]

/** Groups of packages of hack/packages.sh. */
export const packageGroups = ["base", "test", "lint", "go"]

/** Files that determine the packages and the version of Go: a change of another file keeps their layers. */
export const setupFiles = ["hack/packages.sh", "hack/go.sh", "go.mod", "components/shim/go.mod", "hack/toolchain/*/go.mod"]

/** Run once for the files above. */
export const setup: string[][] = [["hack/packages.sh", ...packageGroups], ["hack/go.sh"]]

export const caches: Cache[] = [
  { key: "runtime-go-build", path: "/root/.cache/go-build" },
  { key: "runtime-go-mod", path: "/root/go/pkg/mod" },
  // The toolchain's builds, and what lint installs (RUNTIME_CACHE of the scripts).
  { key: "runtime-toolchain", path: "/root/.cache/miren-runtime" },
  // Base images for builds of apps (cache_dir of the server).
  { key: "runtime-images", path: "/var/cache/runtime" },
]

export const targets = {
  dev: {
    description: "everything built, for work by hand",
    commands: [["make", "toolchain", "bin/runtime"]],
    privileged: true,
  },
  build: {
    description: "the binaries",
    commands: [["make", "toolchain", "bin/runtime"]],
    privileged: false,
  },
  test: {
    description: "everything, unit to end-to-end, on the real components",
    commands: [["make", "test"]],
    privileged: true,
  },
  package: {
    description: "the archive that is installed",
    commands: [["make", "package"]],
    privileged: false,
  },
} satisfies Record<string, Target>

/** Directory of the binaries, below the checkout. */
export const binaries = "bin"

/** Directory of the archive, below the checkout (hack/package.sh). */
export const packages = "bin/package"
