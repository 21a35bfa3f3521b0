// Sandboxes that are paused at their time-out, and continued by their use (docs/e2b.md).
import assert from 'node:assert/strict'
import { setTimeout as sleep } from 'node:timers/promises'
import { Sandbox } from 'e2b'

async function until(what, f) {
  for (const end = Date.now() + 40_000; !(await f()); await sleep(100)) assert(Date.now() < end, `never: ${what}`)
}
const paused = async (box) => (await box.getInfo()).state === 'paused'

const box = await Sandbox.create({ timeoutMs: 60_000, lifecycle: { onTimeout: 'pause' } })
const auto = await Sandbox.create({
  timeoutMs: 60_000, lifecycle: { onTimeout: 'pause', autoResume: true }, network: { allowPublicTraffic: false },
})
try {
  assert.deepEqual((await auto.getInfo()).lifecycle, { onTimeout: 'pause', autoResume: true })
  const server = await auto.commands.run(`python3 -m http.server 3000`, { background: true, timeoutMs: 0, cwd: '/tmp' })
  await until('the port answers', async () => (await auto.commands.run('curl -fs localhost:3000 || true')).stdout !== '')
  for (const b of [box, auto]) {
    await b.files.write('/tmp/kept', 'kept')
    await b.setTimeout(1_000)
  }
  await until('both are paused', async () => (await paused(box)) && (await paused(auto)))
  await assert.rejects(box.files.read('/tmp/kept'))
  assert.equal(await paused(box), true)

  // A request to a port continues it, with the program that listens there.
  const headers = { 'E2b-Sandbox-Id': auto.sandboxId, 'E2b-Sandbox-Port': '3000' }
  const url = process.env.E2B_SANDBOX_URL + '/kept'
  assert.equal((await fetch(url, { headers })).status, 401)
  assert.equal(await paused(auto), true)
  const answer = await fetch(url, { headers: { ...headers, 'E2b-Traffic-Access-Token': auto.trafficAccessToken } })
  assert.equal(await answer.text(), 'kept')
  assert.equal(await paused(auto), false)
  await server.kill()

  const again = await Sandbox.connect(box.sandboxId, { timeoutMs: 60_000 })
  assert.equal(await again.files.read('/tmp/kept'), 'kept')

  // Made from a snapshot.
  const snapshot = await again.createSnapshot()
  const made = await Sandbox.create(snapshot.snapshotId, { timeoutMs: 1_000, lifecycle: { onTimeout: 'pause', autoResume: true } })
  await until('it is paused', () => paused(made))
  assert.equal(await made.files.read('/tmp/kept'), 'kept')
  assert(await made.kill())
  await Sandbox.deleteSnapshot(snapshot.snapshotId)
} finally {
  for (const b of [box, auto]) assert(await b.kill())
}
