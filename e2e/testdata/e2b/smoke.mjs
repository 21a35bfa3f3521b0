// The first calls of a client, with an older version of npm's e2b.
import { Sandbox } from 'e2b-old'
import assert from 'node:assert/strict'

const metadata = { run: 'smoke-' + process.pid }
const box = await Sandbox.create({ timeoutMs: 120_000, metadata, envs: { HELLO: 'there' } })
try {
  const r = await box.commands.run('echo out $HELLO; echo err >&2')
  assert.deepEqual([r.stdout, r.stderr, r.exitCode], ['out there\n', 'err\n', 0])
  await assert.rejects(box.commands.run('exit 3'), (e) => e.name === 'CommandExitError' && e.exitCode === 3)
  assert.equal((await box.files.write('d/1', 'Hällo')).path, '/home/user/d/1')
  assert.equal(await box.files.read('d/1'), 'Hällo')
  assert.deepEqual((await box.files.list('d')).map((e) => e.name), ['1'])
  assert.equal(await box.files.exists('d/2'), false)
  const background = await box.commands.run('sleep 1000', { background: true })
  assert.deepEqual((await box.commands.list()).map((p) => p.pid), [background.pid])
  assert.equal(await background.kill(), true)
  assert.deepEqual((await Sandbox.list({ query: { metadata } }).nextItems()).map((s) => s.sandboxId), [box.sandboxId])
  assert.equal(await (await Sandbox.connect(box.sandboxId)).files.read('d/1'), 'Hällo')
} finally {
  assert.equal(await Sandbox.kill(box.sandboxId), true)
}
assert.equal(await box.isRunning(), false)
