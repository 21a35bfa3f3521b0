/**
 * The functions are called with the real SDK. Without an engine it only records
 * the operations that it would have one carry out; these are compared with the
 * pipeline.
 */
import assert from "node:assert/strict"
import { test } from "node:test"
import { dag } from "@dagger.io/dagger"

import { run, Runtime } from "../src/index.js"
import * as pipeline from "../src/pipeline.js"

interface Operation {
  operation: string
  args?: Record<string, unknown>
}

/** What the SDK has recorded of an object. */
function operations(object: unknown): Operation[] {
  return (object as { _ctx: { _queryTree: Operation[] } })._ctx._queryTree
}

const source = dag.directory()

for (const [name, target] of Object.entries(pipeline.targets) as [string, pipeline.Target][]) {
  test(`${name} sets up, mounts the caches and runs its commands in order`, () => {
    const done = operations(run(source, target))
    assert.equal(done[0].operation, "container")
    assert.deepEqual([done[1].operation, done[1].args?.address], ["from", pipeline.image])

    const mounts = done.filter((op) => op.operation === "withMountedCache")
    assert.deepEqual(mounts.map((op) => op.args?.path), pipeline.caches.map((cache) => cache.path))
    assert.deepEqual(
      mounts.map((op) => operations(op.args?.cache)[0].args?.key),
      pipeline.caches.map((cache) => cache.key),
    )

    const commands = done.filter((op) => op.operation === "withExec")
    assert.deepEqual(commands.map((op) => op.args?.args), [...pipeline.setup, ...target.commands])
    for (const op of commands.slice(pipeline.setup.length)) {
      assert.equal(op.args?.insecureRootCapabilities, target.privileged)
    }

    const copies = done.filter((op) => op.operation === "withDirectory")
    assert.deepEqual(copies.map((op) => op.args?.path), [pipeline.checkout, pipeline.checkout])
    assert.deepEqual(copies[0].args?.include, pipeline.setupFiles)
    assert.deepEqual(copies[1].args?.exclude, pipeline.exclude)
    const order = (op: Operation) => done.indexOf(op)
    assert.ok(order(copies[0]) < order(commands[0]), "the setup's files come before the setup")
    assert.ok(order(commands[pipeline.setup.length - 1]) < order(copies[1]), "a change of the source repeats the setup")
    assert.ok(order(copies[1]) < order(commands[pipeline.setup.length]), "the source comes before the target's commands")
    assert.ok(order(mounts[0]) < order(commands[0]), "the setup uses the caches")
  })
}

test("build and package hand back the directories that the scripts fill", () => {
  const runtime = new Runtime()
  const last = (object: unknown) => operations(object).at(-1)
  assert.deepEqual(last(runtime.build(source)), { operation: "directory", args: { path: "/src/bin" } })
  assert.deepEqual(last(runtime.package(source)), { operation: "directory", args: { path: "/src/bin/package" } })
})

test("dev opens a shell that may run sandboxes", () => {
  const last = operations(new Runtime().dev(source)).at(-1)
  assert.equal(last?.operation, "withDefaultTerminalCmd")
  assert.deepEqual(last?.args?.args, ["bash"])
  assert.equal(last?.args?.insecureRootCapabilities, true)
})
