// The calls of docs/e2b.md that npm's e2b makes, against a real server.
import { Sandbox } from 'e2b'
import assert from 'node:assert/strict'
import http from 'node:http'

const encode = (s) => new TextEncoder().encode(s)
const until = async (what, f) => {
  for (const end = Date.now() + 20_000; !(await f()); ) {
    if (Date.now() > end) throw new Error('never: ' + what)
    await new Promise((r) => setTimeout(r, 50))
  }
}
const run = 'run-' + process.pid
const metadata = { run, userId: 'Ä b&c=1' }
const box = await Sandbox.create({ timeoutMs: 300_000, metadata, envs: { HELLO: 'there' } })
const others = []
try {
  // Commands.
  const r = await box.commands.run('echo out $HELLO; echo err >&2')
  assert.deepEqual([r.stdout, r.stderr, r.exitCode], ['out there\n', 'err\n', 0])
  await assert.rejects(box.commands.run('exit 3'), (e) => e.name === 'CommandExitError' && e.exitCode === 3)
  assert.equal((await box.commands.run('whoami; pwd; echo $A', { user: 'root', cwd: '/tmp', envs: { A: 'b' } })).stdout, 'root\n/tmp\nb\n')
  await assert.rejects(box.commands.run('sleep 1000', { timeoutMs: 500 }), (e) => e.name === 'TimeoutError')
  await until('the command is killed', async () => (await box.commands.list()).length === 0)
  assert.equal((await box.commands.run('head -c 5000000 /dev/zero | tr "\\0" x')).stdout.length, 5_000_000)

  // In the background, with input; another call follows it, or reads its end.
  let first = ''
  const h = await box.commands.run('echo begin; read x; echo got $x; exit 4', {
    background: true, stdin: true, timeoutMs: 0, onStdout: (s) => { first += s },
  })
  await until('the first output', () => first === 'begin\n') // which the follower does not get
  assert.equal((await box.commands.run(`cat /proc/${h.pid}/comm`)).stdout, 'bash\n')
  const list = await box.commands.list()
  assert.deepEqual(list.map((p) => [p.pid, p.cmd, p.args[0]]), [[h.pid, '/bin/bash', '-l']])
  await h.disconnect()
  const follower = await box.commands.connect(h.pid)
  await box.commands.sendStdin(h.pid, 'word\n')
  await assert.rejects(follower.wait(), (e) => e.exitCode === 4 && e.stdout === 'got word\n')
  await assert.rejects((await box.commands.connect(h.pid)).wait(), (e) => e.exitCode === 4)
  const killed = await box.commands.run('sleep 1000', { background: true })
  assert.equal(await killed.kill(), true)
  await assert.rejects(killed.wait(), (e) => e.exitCode === 137)
  assert.equal(await box.commands.kill(killed.pid), false)
  const cat = await box.commands.run('cat', { background: true, stdin: true })
  await cat.sendStdin('abc')
  await cat.closeStdin()
  assert.equal((await cat.wait()).stdout, 'abc')

  // A terminal.
  let screen = ''
  const pty = await box.pty.create({ cols: 80, rows: 24, onData: (d) => { screen += new TextDecoder().decode(d) } })
  await box.pty.sendInput(pty.pid, encode('stty size\n'))
  await until('the size of the terminal', () => screen.includes('24 80'))
  await box.pty.resize(pty.pid, { cols: 100, rows: 30 })
  await box.pty.sendInput(pty.pid, encode('stty size; exit 0\n'))
  await pty.wait()
  assert.ok(screen.includes('30 100'), screen)

  // Files.
  assert.equal((await box.files.write('d/1', 'Hällo')).path, '/home/user/d/1')
  assert.equal(await box.files.read('/home/user/d/1'), 'Hällo')
  await box.files.write([{ path: 'd/2', data: 'two' }, { path: '/tmp/3', data: new Blob(['three']) }])
  assert.deepEqual(await box.files.read('/tmp/3', { format: 'bytes' }), encode('three'))
  await box.files.write('empty', '')
  assert.equal(await box.files.read('empty'), '')
  await box.files.write('d/z', 'zipped', { gzip: true })
  let streamed = ''
  for await (const b of await box.files.read('d/z', { format: 'stream' })) streamed += new TextDecoder().decode(b)
  assert.equal(streamed, 'zipped')
  const info = await box.files.getInfo('d/1')
  assert.deepEqual([info.type, info.size, info.permissions, info.owner, info.mode], ['file', 6, '-rw-r--r--', 'user', 0o644])
  assert.equal(await box.files.makeDir('d/e/f'), true)
  assert.equal(await box.files.makeDir('d/e/f'), false)
  assert.equal((await box.files.rename('d/1', 'd/e/one')).path, '/home/user/d/e/one')
  assert.deepEqual((await box.files.list('d')).map((e) => e.name), ['2', 'e', 'z'])
  assert.ok((await box.files.list('d', { depth: 2 })).some((e) => e.path === '/home/user/d/e/one'))
  assert.equal(await box.files.exists('d/2'), true)
  await box.files.remove('d/2')
  assert.equal(await box.files.exists('d/2'), false)
  await assert.rejects(box.files.read('nothing'), (e) => e.name === 'FileNotFoundError')
  await assert.rejects(box.files.list('nothing'), (e) => e.name === 'FileNotFoundError')
  await assert.rejects(box.files.read('/etc/shadow'))
  await box.files.write('/root/r', 'x', { user: 'root' })
  assert.equal((await box.files.getInfo('/root/r', { user: 'root' })).owner, 'root')

  // Metadata of files, by both ways of uploading. Keys become lower case.
  const about = { author: 'A b', Purpose: 'x=1; "y"', empty: '' }
  const stored = { author: 'A b', purpose: 'x=1; "y"', empty: '' }
  assert.deepEqual((await box.files.write('m/1', 'one', { metadata: about })).metadata, stored)
  assert.deepEqual((await box.files.write('m/2', 'two', { metadata: about, gzip: true })).metadata, stored)
  await box.files.write([{ path: 'm/3', data: '3' }, { path: 'm/4', data: '4' }], { metadata: { n: 'many' } })
  assert.deepEqual({ ...(await box.files.getInfo('m/1')).metadata }, stored)
  assert.deepEqual({ ...(await box.files.rename('m/1', 'm/5')).metadata }, stored)
  await box.commands.run(`python3 -c 'import os; os.setxattr("m/5", "user.e2b.by", b"process"); os.setxattr("m/5", "user.other", b"-")'`)
  assert.equal((await box.files.write('m/2', 'again')).metadata, undefined)
  assert.deepEqual((await box.files.list('m')).map((e) => [e.name, { ...e.metadata }]),
    [['2', {}], ['3', { n: 'many' }], ['4', { n: 'many' }], ['5', { ...stored, by: 'process' }]])
  await assert.rejects(box.files.write('m/6', '', { metadata: { ['k'.repeat(129)]: '' } }), (e) => e.message.includes('129 bytes'))
  await assert.rejects(box.files.write('m/6', '', { metadata: { ä: '' } }), (e) => e.name === 'InvalidArgumentError')
  assert.equal(await box.files.exists('m/6'), false)

  // Signed URLs.
  const url = await box.downloadUrl('d/z', { useSignatureExpiration: 60 })
  assert.equal(await (await fetch(url)).text(), 'zipped')
  for (const bad of [url.replace('signature=v1_', 'signature=v1_A'), url.replace('path=d%2Fz', 'path=d%2Fe%2Fone')]) {
    const a = await fetch(bad)
    assert.equal(a.status, 401, bad + await a.text())
  }
  const form = new FormData()
  form.append('file', new Blob(['uploaded']), 'up')
  assert.equal((await fetch(await box.uploadUrl('d/up'), { method: 'POST', body: form })).status, 200)
  assert.equal(await box.files.read('d/up'), 'uploaded')

  // Watches.
  const seen = []
  const watch = await box.files.watchDir('d', (e) => { seen.push(e.type + ' ' + e.name) }, { recursive: true })
  await box.files.write('d/e/new', 'x')
  await until('an event', () => seen.includes('create e/new'))
  await watch.stop()

  // git runs as commands.
  await box.git.init('repo')
  await box.git.configureUser('A', 'a@example.com')
  await box.files.write('repo/f', '1')
  assert.equal((await box.git.status('repo')).untrackedCount, 1)
  await box.git.add('repo')
  await box.git.commit('repo', 'first')
  assert.equal((await box.git.status('repo')).isClean, true)

  // Ports, by the headers that name the sandbox.
  await box.commands.run('python3 -m http.server 8000', { background: true, timeoutMs: 0 })
  await until('a server', async () => (await box.commands.run('curl -so /dev/null localhost:8000 && echo up || true')).stdout === 'up\n')
  const port = { 'E2b-Sandbox-Id': box.sandboxId, 'E2b-Sandbox-Port': '8000' }
  const page = await fetch(process.env.E2B_SANDBOX_URL + '/d/z', { headers: { ...port, 'E2b-Traffic-Access-Token': box.trafficAccessToken } })
  assert.equal(await page.text(), 'zipped')
  assert.equal((await fetch(process.env.E2B_SANDBOX_URL + '/d/z', { headers: port })).status, 401)

  // Ports through the ingress, whose domain is E2B_DOMAIN. Node resolves no names below localhost.
  const through = (box, headers = {}) => new Promise((resolve, reject) => {
    const host = box.getHost(8000)
    http.get({ host: '127.0.0.1', port: host.split(':')[1], path: '/', headers: { ...headers, host } }, (answer) => {
      answer.resume()
      resolve(answer.statusCode)
    }).on('error', reject)
  })
  assert.equal(box.getHost(8000), `8000-${box.sandboxId}.${process.env.E2B_DOMAIN}`)
  assert.equal(await through(box), 404)
  for (const allowPublicTraffic of [true, false]) {
    const other = await Sandbox.create({ timeoutMs: 120_000, network: { allowPublicTraffic } })
    await other.commands.run('python3 -m http.server 8000', { background: true, timeoutMs: 0 })
    const token = { 'E2b-Traffic-Access-Token': other.trafficAccessToken }
    await until('a preview', async () => (await through(other, token)) === 200)
    assert.equal(await through(other), allowPublicTraffic ? 200 : 401)
    assert.equal(await through(other, { 'E2b-Traffic-Access-Token': box.trafficAccessToken }), allowPublicTraffic ? 200 : 401)
    await other.kill()
  }

  // Description, list, time-out.
  const d = await box.getInfo()
  assert.deepEqual([d.templateId, d.state, d.metadata], ['base', 'running', metadata])
  await box.setTimeout(600_000)
  const left = (await box.getInfo()).endAt - Date.now()
  assert.ok(left > 590_000 && left <= 600_000, left)
  for (let i = 0; i < 2; i++) others.push(await Sandbox.create({ metadata: { run }, timeoutMs: 120_000 }))
  const pages = Sandbox.list({ query: { metadata: { run } }, limit: 2 })
  const ids = []
  while (pages.hasNext) ids.push(...(await pages.nextItems()).map((s) => s.sandboxId))
  assert.deepEqual(ids.sort(), [box, ...others].map((s) => s.sandboxId).sort())
  assert.equal((await Sandbox.list({ query: { metadata } }).nextItems()).length, 1)

  // Metrics, network.
  const [metrics] = await box.getMetrics()
  assert.ok(metrics.memUsed > 1e6 && metrics.cpuCount === 1, JSON.stringify(metrics))
  await box.updateNetwork({ allowInternetAccess: false })
  assert.equal((await box.getInfo()).allowInternetAccess, false)
  await box.updateNetwork({ denyOut: ['0.0.0.0/0'], allowOut: ['192.0.2.1'] })
  assert.deepEqual((await box.getInfo()).network.allowOut, ['192.0.2.1'])
  others.push(await Sandbox.create({ allowInternetAccess: false, timeoutMs: 60_000 }))
  assert.equal((await others.at(-1).getInfo()).allowInternetAccess, false)

  // Pause: use does not continue it, a connection does, with processes.
  await box.commands.run('echo kept > /tmp/kept')
  const kept = await box.commands.run('read x; echo got $x', { background: true, stdin: true, timeoutMs: 0 })
  await kept.disconnect()
  assert.equal(await box.pause(), true)
  assert.equal(await box.pause(), false)
  assert.equal(await box.isRunning(), false)
  assert.equal((await Sandbox.list({ query: { metadata: { run }, state: ['paused'] } }).nextItems())[0].sandboxId, box.sandboxId)
  await assert.rejects(box.commands.run('true'), (e) => e.name === 'SandboxNotFoundError')
  const again = await Sandbox.connect(box.sandboxId, { timeoutMs: 120_000 })
  assert.equal(await again.files.read('/tmp/kept'), 'kept\n')
  assert.equal((await again.files.getInfo('m/5')).metadata.by, 'process')
  const resumed = await again.commands.connect(kept.pid)
  await again.commands.sendStdin(kept.pid, 'word\n')
  assert.equal((await resumed.wait()).stdout, 'got word\n')

  // Snapshots and forks.
  const snapshot = await box.createSnapshot({ name: 'snapshot-' + process.pid })
  assert.deepEqual((await box.listSnapshots().nextItems()).map((s) => s.snapshotId), [snapshot.snapshotId])
  others.push(await Sandbox.create(snapshot.snapshotId, { timeoutMs: 60_000 }))
  assert.equal(await others.at(-1).files.read('/tmp/kept'), 'kept\n')
  assert.equal(await Sandbox.deleteSnapshot(snapshot.snapshotId), true)
  assert.equal(await Sandbox.deleteSnapshot(snapshot.snapshotId), false)
  for (const f of await box.fork({ count: 2, timeoutMs: 60_000 })) {
    assert.equal(await f.files.read('/tmp/kept'), 'kept\n')
    others.push(f)
  }

  // What is not served says so.
  for (const q of [{ lifecycle: { onTimeout: { action: 'pause', keepMemory: false } } }, { network: { egressProxy: { address: 'h:1' } } }]) {
    await assert.rejects(Sandbox.create(q), (e) => e.message.startsWith('501: '))
  }
  await assert.rejects(Sandbox.create('no-such-template'), (e) => e.message.startsWith('404: '))
  await assert.rejects(Sandbox.create({ apiKey: 'e2b_' + '0'.repeat(64) }), (e) => e.name === 'AuthenticationError')

  // The end.
  others.push(await Sandbox.create({ timeoutMs: 2_000 }))
  await assert.rejects(others.at(-1).commands.run('sleep 60'), (e) => e.name === 'TimeoutError' || e.name === 'SandboxNotFoundError')
  await until('the time-out', async () => !(await others.at(-1).isRunning()))
} finally {
  await Promise.all(others.map((s) => s.kill()))
  assert.equal(await box.kill(), true)
}
assert.equal(await box.kill(), false)
assert.equal(await box.isRunning(), false)
