/** What the pipeline names is compared with the checkout: the Makefile, the scripts, the configuration. */
import assert from "node:assert/strict"
import { execFileSync, spawnSync } from "node:child_process"
import { cpSync, existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, statSync } from "node:fs"
import { tmpdir } from "node:os"
import { dirname, join } from "node:path"
import { test } from "node:test"

import * as pipeline from "../src/pipeline.js"

const checkout = process.env.RUNTIME_CHECKOUT
assert.ok(checkout, "run it with hack/dagger.sh")

const read = (path: string) => readFileSync(join(checkout, path), "utf8")
const output = (command: string, args: string[], env: Record<string, string> = {}) =>
  execFileSync(join(checkout, command), args, { encoding: "utf8", env: { ...process.env, ...env } }).trim()

test("every command is a target of the Makefile or a script", () => {
  const phony = read("Makefile").match(/^\.PHONY: (.*)$/m)?.[1].split(" ") ?? []
  const commands = [...pipeline.setup, ...Object.values(pipeline.targets).flatMap((target: pipeline.Target) => target.commands)]
  for (const [program, ...args] of commands) {
    if (program === "make") {
      for (const target of args) {
        assert.ok(phony.includes(target), `the Makefile has no target ${target}`)
        assert.match(read("Makefile"), new RegExp(`^${target}:`, "m"))
      }
    } else {
      assert.ok(statSync(join(checkout, program)).mode & 0o111, `${program} is no program`)
    }
  }
})

test("every group of packages is known", () => {
  const out = spawnSync(join(checkout, "hack/packages.sh"), ["--check", ...pipeline.packageGroups], { encoding: "utf8" })
  assert.doesNotMatch(out.stderr, /no group/)
  const unknown = spawnSync(join(checkout, "hack/packages.sh"), ["--check", "nonsense"], { encoding: "utf8" })
  assert.match(unknown.stderr, /no group/)
})

test("the setup needs no other files than those it names", () => {
  const dir = mkdtempSync(join(tmpdir(), "setup-"))
  try {
    for (const pattern of pipeline.setupFiles) {
      const files = expand(pattern)
      assert.ok(files.length > 0, `${pattern} is not in the checkout`)
      for (const file of files) {
        mkdirSync(dirname(join(dir, file)), { recursive: true })
        cpSync(join(checkout, file), join(dir, file))
      }
    }
    const go = execFileSync(join(dir, "hack/go.sh"), { encoding: "utf8" }).trim()
    assert.equal(go, output("hack/go.sh", []))
    const packages = spawnSync(join(dir, "hack/packages.sh"), ["--check", ...pipeline.packageGroups], { encoding: "utf8" })
    assert.equal(packages.error, undefined)
    assert.doesNotMatch(packages.stderr, /No such file/)
  } finally {
    rmSync(dir, { recursive: true })
  }
})

/** The files of a pattern with at most one *, which stands for a directory. */
function expand(pattern: string): string[] {
  const out = execFileSync("bash", ["-c", 'cd "$1" && compgen -G "$2" || true', "bash", checkout!, pattern], { encoding: "utf8" })
  return out.split("\n").filter((line) => line !== "" && existsSync(join(checkout!, line)))
}

test("the caches are where root's tools and the server look for them", () => {
  const env = { HOME: "/root", GOPATH: "", GOCACHE: "", GOMODCACHE: "", XDG_CACHE_HOME: "", GOFLAGS: "" }
  const go = output("hack/go.sh", [])
  const value = (name: string) => execFileSync(go, ["env", name], { encoding: "utf8", env: { ...process.env, ...env } }).trim()
  const toolchain = read("hack/toolchain.sh").match(/^cache=.*\$\{HOME:-(\/root)\}(\/[^}]*)\}(\/[^}]*)\}/m)
  assert.ok(toolchain)
  const config = read("docs/reference/config.md").match(/^\| `cache_dir` \| string \| `([^`]+)`/m)
  assert.ok(config)
  assert.deepEqual(
    pipeline.caches.map((cache) => cache.path).sort(),
    [value("GOCACHE"), value("GOMODCACHE"), toolchain[1] + toolchain[2] + toolchain[3], config[1]].sort(),
  )
  assert.equal(new Set(pipeline.caches.map((cache) => cache.key)).size, pipeline.caches.length)
})

test("what is handed back is where the scripts put it, and is not taken from the host", () => {
  assert.equal(output("hack/toolchain.sh", ["--print-dir"], { RUNTIME_BIN: "" }), join(checkout, pipeline.binaries))
  assert.equal(output("hack/package.sh", ["--print-dir"]), pipeline.packages)
  assert.ok(pipeline.exclude.includes(pipeline.binaries))
  const ignored = read(".gitignore").split("\n")
  for (const path of pipeline.exclude) {
    const name = path.replace(/^\*\*\//, "")
    assert.ok(ignored.some((line) => line.replace(/^\/|\/$/g, "") === name), `${path} is not in .gitignore`)
  }
})
