// Commands that go on while the server is killed or stopped. `begin` starts them, `continue` follows them with the next server.
import { Sandbox } from 'e2b'
import assert from 'node:assert/strict'

const until = async (what, f) => {
  for (const end = Date.now() + 30_000; !(await f()); ) {
    if (Date.now() > end) throw new Error('never: ' + what)
    await new Promise((r) => setTimeout(r, 50))
  }
}
const [, , step, id, ...pids] = process.argv
const background = { background: true, stdin: true, timeoutMs: 0 }
if (step === 'begin') {
  const box = await Sandbox.create({ timeoutMs: 600_000 })
  const counting = await box.commands.run('echo begun; while ! read -t 0.2 x; do echo tick; done; echo got $x; exit 5', background)
  const writing = await box.commands.run('read x; head -c 5000000 /dev/zero | tr "\\0" $x', background)
  const timed = await box.commands.run('sleep 1000', { background: true, timeoutMs: 25_000 })
  await until('it begins', () => counting.stdout.includes('tick'))
  console.log([box.sandboxId, counting.pid, writing.pid, timed.pid].join(' '))
  process.exit(0)
}
const box = await Sandbox.connect(id)
const [counting, writing, timed] = pids.map(Number)
const list = await box.commands.list()
assert.deepEqual(list.map((p) => p.pid).sort((a, b) => a - b), [counting, writing, timed].sort((a, b) => a - b))
assert.deepEqual([list[0].cmd, list[0].args[0]], ['/bin/bash', '-l'])

const follower = await box.commands.connect(counting, { timeoutMs: 0 })
await until('a tick', () => follower.stdout.includes('tick'))
await box.commands.sendStdin(counting, 'word\n')
await assert.rejects(follower.wait(), (e) => e.exitCode === 5 && e.stdout.endsWith('got word\n'))

const output = await box.commands.connect(writing, { timeoutMs: 0 })
await box.commands.sendStdin(writing, 'y\n')
assert.equal((await output.wait()).stdout, 'y'.repeat(5_000_000))

await until('its time-out', async () => (await box.commands.list()).length === 0)
await assert.rejects((await box.commands.connect(timed)).wait())
assert.equal(await box.kill(), true)
