// A context of JavaScript and TypeScript. It reads requests and writes events, both lines of JSON, by two pipes.
//
// Code is evaluated by the inspector of the same thread, in its mode for consoles: const, let and classes last and may be
// declared again, and await works outside of functions. The third pipe has the numbers of executions to interrupt. A second
// thread reads it, which also ends code that does not return.
'use strict'

const fs = require('fs')
const inspector = require('inspector')
const { createRequire, stripTypeScriptTypes } = require('module')
const net = require('net')
const path = require('path')
const { pathToFileURL } = require('url')
const util = require('util')
const vm = require('vm')
const { Worker } = require('worker_threads')

const [requests, events, interrupts] = process.argv.slice(2).map(Number)
const maxResult = 8 << 20 // bytes of all formats of a result

function send(event) {
  let data = Buffer.from(JSON.stringify(event) + '\n')
  while (data.length > 0) data = data.subarray(fs.writeSync(events, data))
}

for (const name of ['stdout', 'stderr']) {
  process[name].write = (chunk, encoding, done) => {
    const text = typeof chunk === 'string' ? chunk : Buffer.from(chunk).toString()
    for (let i = 0; i < text.length; i += 16384) send({ [name]: text.slice(i, i + 16384) })
    const called = typeof encoding === 'function' ? encoding : done
    if (called) process.nextTick(called)
    return true
  }
}

const inspect = (value) => util.inspect(value, { depth: 4, maxArrayLength: 200, maxStringLength: 100000 })

function formatsOf(value) {
  const bundle = value?.[Symbol.for('Jupyter.display')]
  const formats = typeof bundle === 'function' ? bundle.call(value) : { 'text/plain': inspect(value) }
  if (typeof bundle !== 'function' && value !== null && typeof value === 'object' && !(value instanceof Error)) {
    const plain = Array.isArray(value) || [Object.prototype, null].includes(Object.getPrototypeOf(value))
    try {
      if (plain) formats['application/json'] = JSON.stringify(value)
    } catch {} // it has a cycle, or a bigint
  }
  return formats
}

function result(formats, main) {
  const out = {}
  let size = 0
  for (const [mime, value] of Object.entries(formats)) {
    const text = typeof value === 'string' ? value : ArrayBuffer.isView(value) ? Buffer.from(value).toString('base64') : JSON.stringify(value)
    size += Buffer.byteLength(JSON.stringify(text))
    if (size > maxResult) console.error(`the result is larger than ${maxResult >> 20} MiB as ${mime}, which is left out`)
    else out[mime] = text
  }
  if (Object.keys(out).length > 0) send({ result: { formats: out, main } })
}

// display shows a value, or formats by their media types.
globalThis.display = (value) => {
  const bundle = value && typeof value === 'object' && Object.keys(value).length > 0 && Object.keys(value).every((k) => /^[a-z]+\/[-+.\w]+$/.test(k))
  result(bundle ? value : formatsOf(value), false)
}

// stackOf returns the stack of an error without the frames of this file.
function stackOf(e) {
  const frames = String(e.stack).split('\n    at ')
  const own = frames.findIndex((f) => f.includes('Session.post (node:inspector'))
  return (own < 0 ? frames : frames.slice(0, own)).join('\n    at ')
}

function failed(e) {
  const error = util.types.isNativeError(e)
  send({
    error: {
      name: error ? String(e.name) : 'Error', value: error ? String(e.message) : inspect(e),
      traceback: error && !(e instanceof Interrupted) ? stackOf(e) : '',
    },
  })
}

// Imports of modules are replaced by calls: what the inspector evaluates cannot import by itself. The first alternatives
// of the pattern skip comments and strings.
const imports =
  /\/\/[^\n]*|\/\*[\s\S]*?\*\/|'(?:\\.|[^'\\\n])*'|"(?:\\.|[^"\\\n])*"|`(?:\\[\s\S]|[^`\\])*`|(?<![.\w$])import(?=\s*\()|(?<![^\n;])[ \t]*import\s+(?:(?<what>[\w$*{}\s,]+?)\s*from\s*)?(?<from>'[^'\n]+'|"[^"\n]+")(?:\s+with\s*\{[^}]*\})?/g

function withoutImports(code) {
  if (!/\bimport\b/.test(code)) return code
  return code.replace(imports, (text, ...rest) => {
    if (text === 'import') return '__import'
    const { what, from } = rest.at(-1)
    if (!from) return text
    const module = `await __import(${from})`
    if (!what) return `${module};`
    const all = /^(?:(?<main>[\w$]+)\s*,?\s*)?(?:\*\s*as\s+(?<space>[\w$]+)|\{(?<names>[^}]*)\})?$/.exec(what.trim())
    if (!all) return text
    const { main, space, names } = all.groups
    const fields = (names ?? '').split(',').map((n) => n.trim().replace(/\s+as\s+/, ': ')).filter(Boolean)
    if (main) fields.unshift(`default: ${main}`)
    return [space && `const ${space} = ${module};`, fields.length > 0 && `const { ${fields.join(', ')} } = ${module};`].filter(Boolean).join(' ') || `${module};`
  })
}

const session = new inspector.Session()
session.connect()
let taken // the value for which valueOf has asked the inspector
let interrupted = () => {}
const state = new Int32Array(new SharedArrayBuffer(4)) // number of the execution whose code has not returned; 0: none
let current = 0 // number of the execution under way

const post = (method, params) =>
  new Promise((resolve, reject) => session.post(method, params, (e, r) => (e ? reject(e) : resolve(r))))

Object.defineProperty(globalThis, Symbol.for('runtime.take'), { value: (v) => { taken = v } })

// valueOf returns the value of an object of the inspector in an array: it may be a promise.
async function valueOf(object) {
  if ('value' in object) return [object.value]
  if (object.type === 'undefined') return [undefined]
  if (object.type === 'bigint') return [BigInt(object.unserializableValue.slice(0, -1))]
  if (object.unserializableValue) return [Number(object.unserializableValue)]
  const { objectId } = object
  await post('Runtime.callFunctionOn', {
    objectId, functionDeclaration: 'function (v) { globalThis[Symbol.for("runtime.take")](v) }', arguments: [{ objectId }],
  })
  const boxed = [taken]
  taken = undefined
  return boxed
}

class Interrupted extends Error {
  name = 'Interrupted'
}

async function evaluate({ code, language }) {
  const stop = new Promise((_, reject) => { interrupted = () => reject(new Interrupted('the execution was interrupted')) })
  stop.catch(() => {})
  if (language === 'typescript') code = stripTypeScriptTypes(code)
  const expression = withoutImports(code)
  Atomics.store(state, 0, current)
  const evaluation = post('Runtime.evaluate', { expression, replMode: true, awaitPromise: true, objectGroup: 'execution' })
  Atomics.store(state, 0, 0)
  let answer
  try {
    answer = await Promise.race([evaluation, stop])
  } catch (e) {
    throw e.code === 'ERR_INSPECTOR_COMMAND' ? new Interrupted('the execution was interrupted') : e
  }
  let [value] = await valueOf(answer.exceptionDetails?.exception ?? answer.result)
  await post('Runtime.releaseObjectGroup', { objectGroup: 'execution' })
  if (answer.exceptionDetails) throw value
  if (util.types.isPromise(value)) value = await Promise.race([value, stop])
  if (value !== undefined) result(formatsOf(value), true)
}

async function execute(request) {
  const before = Object.keys(request.env).map((k) => [k, process.env[k]])
  Object.assign(process.env, request.env)
  let ok = true
  current = request.number
  try {
    await evaluate(request)
  } catch (e) {
    ok = false
    failed(e)
  }
  current = 0
  interrupted = () => {}
  for (const [k, v] of before) {
    if (v === undefined) delete process.env[k]
    else process.env[k] = v
  }
  send({ end: { ok } })
}

function prepare({ env, workdir }) {
  Object.assign(process.env, env)
  if (workdir) process.chdir(workdir)
  const base = path.join(process.cwd(), 'context.js')
  globalThis.require = createRequire(base)
  globalThis.__import = new vm.Script('(name, options) => import(name, options)', {
    filename: pathToFileURL(base).href, importModuleDynamically: vm.constants.USE_MAIN_CONTEXT_DEFAULT_LOADER,
  }).runInThisContext()
}

process.on('SIGINT', () => {}) // for the processes of the code
process.on('uncaughtException', (e) => process.stderr.write(`Uncaught ${util.types.isNativeError(e) ? stackOf(e) : inspect(e)}\n`)) // rejected promises too
// The thread tells this one to stop waiting, and has the inspector end code that does not return soon: by then, calls of
// programs have returned, which the signal has ended. Code that is busy after an await is not ended: that would break
// Node.js, which has called it.
const watcher = new Worker(
  `const { workerData: { interrupts, state }, parentPort } = require('worker_threads')
   const inspector = require('inspector')
   const net = require('net')
   const session = new inspector.Session()
   session.connectToMainThread()
   const input = new net.Socket({ fd: interrupts, readable: true, writable: false })
   input.on('data', (numbers) => {
     const number = Number(String(numbers).trim().split('\\n').pop())
     parentPort.postMessage(number)
     setTimeout(() => {
       if (Atomics.load(state, 0) === number) session.post('Runtime.terminateExecution', () => {})
     }, 200)
   })
   input.on('end', () => process.exit())
   parentPort.postMessage(0)`,
  { eval: true, workerData: { interrupts, state } },
)
watcher.on('message', (number) => {
  if (number === 0) return begin()
  if (number === current) interrupted()
})

function begin() {
  send({ end: { ok: true } })
  let line = ''
  let last = Promise.resolve()
  const input = new net.Socket({ fd: requests, readable: true, writable: false }).setEncoding('utf8')
  input.on('data', (chunk) => {
    const lines = (line + chunk).split('\n')
    line = lines.pop()
    for (const l of lines) {
      const request = JSON.parse(l)
      last = last.then(() => {
        if (request.code !== undefined) return execute(request)
        try {
          prepare(request)
          send({ end: { ok: true } })
        } catch {
          send({ end: { ok: false } })
        }
      })
    }
  })
  input.on('end', () => process.exit())
}
