/**
 * Development of runtime in containers: a shell, the build, the tests, the
 * package. Each function calls targets of the Makefile, which also work
 * without Dagger; pipeline.ts lists them.
 */
import { argument, dag, type Container, type Directory, func, object } from "@dagger.io/dagger"

import * as pipeline from "./pipeline.js"

/** A container with the packages, Go, the caches and the checkout. */
export function base(source: Directory): Container {
  let c = dag
    .container()
    .from(pipeline.image)
    .withWorkdir(pipeline.checkout)
    .withDirectory(pipeline.checkout, source, { include: pipeline.setupFiles })
  for (const cache of pipeline.caches) {
    c = c.withMountedCache(cache.path, dag.cacheVolume(cache.key))
  }
  for (const command of pipeline.setup) {
    c = c.withExec(command)
  }
  return c.withDirectory(pipeline.checkout, source, { exclude: pipeline.exclude })
}

/** The container after a target's commands. */
export function run(source: Directory, target: pipeline.Target): Container {
  let c = base(source)
  for (const command of target.commands) {
    c = c.withExec(command, { insecureRootCapabilities: target.privileged })
  }
  return c
}

@object()
export class Runtime {
  /** A container with everything built: `dagger -m dagger call dev terminal`. */
  @func()
  dev(@argument({ defaultPath: "/" }) source: Directory): Container {
    return run(source, pipeline.targets.dev).withDefaultTerminalCmd(["bash"], {
      insecureRootCapabilities: pipeline.targets.dev.privileged,
    })
  }

  /** The directory of the binaries (make toolchain bin/runtime). */
  @func()
  build(@argument({ defaultPath: "/" }) source: Directory): Directory {
    return run(source, pipeline.targets.build).directory(`${pipeline.checkout}/${pipeline.binaries}`)
  }

  /** The output of the tests (make test); fails if they do. */
  @func()
  test(@argument({ defaultPath: "/" }) source: Directory): Promise<string> {
    return run(source, pipeline.targets.test).stdout()
  }

  /** The directory of the archive and its checksum (make package). */
  @func()
  package(@argument({ defaultPath: "/" }) source: Directory): Directory {
    return run(source, pipeline.targets.package).directory(`${pipeline.checkout}/${pipeline.packages}`)
  }
}
