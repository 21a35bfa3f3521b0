// The calls of docs/e2b.md that npm's @e2b/code-interpreter makes.
import { Sandbox } from '@e2b/code-interpreter'
import assert from 'node:assert/strict'

const box = await Sandbox.create({ timeoutMs: 300_000 })
try {
  await box.runCode('x = 41', { timeoutMs: 120_000 })
  const e = await box.runCode('import sys; print("out"); print("err", file=sys.stderr); x + 1')
  assert.deepEqual([e.text, e.logs.stdout.join(''), e.logs.stderr.join(''), e.executionCount], ['42', 'out\n', 'err\n', 2])
  const failed = await box.runCode('1/0')
  assert.equal(failed.error.name, 'ZeroDivisionError')
  assert.ok(failed.error.traceback.includes('ZeroDivisionError'))
  let streamed = ''
  await box.runCode('print("a"); print("b")', { onStdout: (m) => { streamed += m.line } })
  assert.equal(streamed, 'a\nb\n')
  assert.equal((await box.runCode('import os; os.environ["A"]', { envs: { A: 'b' } })).text, "'b'")
  assert.equal((await box.runCode('const y = 6; y * 7', { language: 'js' })).text, '42')
  assert.equal((await box.runCode('echo $((6*7))', { language: 'bash' })).logs.stdout.join(''), '42\n')

  const table = (await box.runCode('import pandas; pandas.DataFrame({"a": [1, 2]})')).results[0]
  assert.ok(table.html.includes('<table'))
  assert.deepEqual(table.data, { a: [1, 2] })
  const [figure] = (await box.runCode('import matplotlib.pyplot as plt; plt.plot([1, 2], [3, 4]); plt.title("T"); plt.show()')).results
  assert.equal(Buffer.from(figure.png, 'base64').subarray(1, 4).toString(), 'PNG')
  assert.deepEqual([figure.chart.type, figure.chart.title], ['line', 'T'])

  const context = await box.createCodeContext({ language: 'python', cwd: '/tmp' })
  assert.equal(context.cwd, '/tmp')
  assert.equal((await box.runCode('x', { context })).error.name, 'NameError')
  assert.equal((await box.runCode('import os; z = 1; os.getcwd()', { context })).text, "'/tmp'")
  await box.restartCodeContext(context)
  assert.equal((await box.runCode('z', { context })).error.name, 'NameError')
  assert.ok((await box.listCodeContexts()).some((c) => c.id === context.id))
  await box.removeCodeContext(context)
  assert.ok(!(await box.listCodeContexts()).some((c) => c.id === context.id))

  // A client that gives up interrupts the code; variables stay.
  await assert.rejects(box.runCode('import time; time.sleep(1000)', { timeoutMs: 1000 }), (e) => e.name === 'TimeoutError')
  assert.equal((await box.runCode('x')).text, '41')
  assert.equal((await box.commands.run('echo $((1+1))')).stdout, '2\n')
} finally {
  assert.equal(await box.kill(), true)
}
