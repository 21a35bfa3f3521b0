// Templates that npm's e2b builds, against a real server (docs/e2b.md).
import assert from 'node:assert/strict'
import { mkdir, mkdtemp, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { setTimeout as sleep } from 'node:timers/promises'
import { Sandbox, Template, waitForURL } from 'e2b'

const name = `js-${process.pid}`
const context = await mkdtemp(`${tmpdir()}/context-`)
await mkdir(`${context}/site/deep`, { recursive: true })
await writeFile(`${context}/site/index.html`, 'hello\n')
await writeFile(`${context}/site/deep/page.html`, 'deep\n')

const template = Template({ fileContextPath: context })
  .fromTemplate('base')
  .copy('site', '/home/user/site')
  .copy('site/*.html', '/home/user/flat/')
  .setEnvs({ A: 'b' })
  .runCmd(['echo one > steps', 'echo two >> steps'])
  .makeDir('/home/user/made')
  .setStartCmd('cd /home/user/site && exec python3 -m http.server 8000', waitForURL('http://localhost:8000/deep/page.html'))
assert.equal(await Template.exists(name), false)
const logs = []
const built = await Template.build(template, name, { memoryMB: 512, onBuildLogs: (e) => logs.push(e.message) })
assert.deepEqual([built.templateId, built.tags], [name, ['default']])
assert(logs.some((m) => m.includes('steps')), logs.join('\n'))
assert.equal(await Template.exists(name), true)
const box = await Sandbox.create(name, { timeoutMs: 120_000 })
try {
  assert.equal((await box.commands.run('cd; cat steps flat/index.html; ls -d made flat/deep 2>/dev/null; echo $A')).stdout, 'one\ntwo\nhello\nmade\nb\n')
  assert.equal((await box.commands.run('curl -s localhost:8000/deep/page.html')).stdout, 'deep\n')
} finally {
  assert(await box.kill())
}

// Another version, in the background; the name selects it, the tag the first.
const first = await Template.assignTags(`${name}:default`, 'first')
const second = await Template.buildInBackground(Template().fromTemplate(name).runCmd('echo second > /home/user/steps'), name)
let status
for (const end = Date.now() + 240_000; ; await sleep(200)) {
  status = await Template.getBuildStatus(second)
  if (status.status === 'ready' || status.status === 'error') break
  assert(Date.now() < end, JSON.stringify(status))
}
assert.equal(status.status, 'ready', JSON.stringify(status))
const tags = await Template.getTags(name)
assert.deepEqual(tags.map((t) => t.tag).sort(), ['default', 'first'])
assert.equal(tags.find((t) => t.tag === 'first').buildId, first.buildId)
for (const [tag, want] of [[name, 'second\n'], [`${name}:first`, 'one\ntwo\n']]) {
  const b = await Sandbox.create(tag, { timeoutMs: 120_000 })
  try {
    assert.equal((await b.commands.run('cat /home/user/steps')).stdout, want, tag)
  } finally {
    assert(await b.kill())
  }
}
await Template.removeTags(name, ['first'])
assert.deepEqual((await Template.getTags(name)).map((t) => t.tag), ['default'])

await assert.rejects(Template.build(Template().fromBaseImage().runCmd('echo it broke; exit 9'), name), /exit code 9/)
await assert.rejects(Template.build(Template().fromImage('registry.example.com/nothing:1'), name), /registry.example.com\/nothing/)
const gone = await fetch(`${process.env.E2B_API_URL}/templates/${name}`, { method: 'DELETE', headers: { 'X-API-Key': process.env.E2B_API_KEY } })
assert.equal(gone.status, 204)
assert.equal(await Template.exists(name), false)
