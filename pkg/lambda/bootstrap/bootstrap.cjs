// Runs one invocation of a handler as AWS Lambda does. Reads DIR/request.json and writes DIR/result.json, or
// the file that EXECUTION_RESULT names.
'use strict';
const fs = require('fs');
const path = require('path');
const { spawnSync } = require('child_process');
const { pathToFileURL } = require('url');
const vm = require('vm');

const here = process.argv[2];
const request = JSON.parse(fs.readFileSync(path.join(here, 'request.json'), 'utf8'));
const result = {};
const since = (began) => Number(process.hrtime.bigint() - began) / 1e6;

function finish(outcome) {
  result.outcome = outcome;
  result.max_memory_kb = process.resourceUsage().maxRSS;
  const file = process.env.EXECUTION_RESULT || path.join(here, 'result.json');
  fs.writeFileSync(file + '.new', JSON.stringify(result));
  fs.renameSync(file + '.new', file);
  // Output to pipes is written before the exit.
  process.stdout.write('', () => process.stderr.write('', () => process.exit(0)));
}

function describe(error) {
  if (!(error instanceof Error)) {
    return { errorMessage: typeof error === 'string' ? error : JSON.stringify(error) ?? String(error), errorType: typeof error, stackTrace: [] };
  }
  const trace = (error.stack || '').split('\n').filter((line) => !line.includes(__filename) && !line.includes('(node:'));
  return { errorMessage: error.message, errorType: error.name, stackTrace: trace };
}

function fail(outcome, error, kind) {
  result.error = describe(error);
  if (kind) result.error.errorType = kind;
  finish(outcome);
}

class Done extends Error {}

async function load() {
  let file = path.resolve(request.file);
  const code = fs.readFileSync(file, 'utf8');
  const commonJS = file.endsWith('.cjs') || (file.endsWith('.js') && !/^\s*(import\s*[\w{*"']|export\s)/m.test(code));
  let loaded;
  try {
    if (commonJS) {
      new vm.Script('(function (exports, require, module, __filename, __dirname) {' + code.replace(/^#!.*/, '') + '\n})', { filename: file });
      loaded = require(file);
    } else {
      if (file.endsWith('.js')) {
        file = file.slice(0, -3) + '.mjs';
        fs.writeFileSync(file, code);
      }
      loaded = await import(pathToFileURL(file));
    }
  } catch (e) {
    if (e instanceof SyntaxError) fail('syntax', e, 'Runtime.UserCodeSyntaxError');
    else if (e && (e.code === 'MODULE_NOT_FOUND' || e.code === 'ERR_MODULE_NOT_FOUND')) fail('error', e, 'Runtime.ImportModuleError');
    else fail('error', e);
    throw new Done();
  }
  for (const name of request.functions) {
    const handler = loaded[name] ?? loaded.default?.[name];
    if (typeof handler === 'function') return handler;
  }
  result.error = { errorMessage: `${request.file}.${request.functions[0]} is undefined or not exported`, errorType: 'Runtime.HandlerNotFound', stackTrace: [] };
  finish('undefined');
  throw new Done();
}

function install() {
  if (!fs.existsSync('package.json') || fs.existsSync('node_modules')) return;
  const dependencies = JSON.parse(fs.readFileSync('package.json', 'utf8')).dependencies;
  if (!dependencies || Object.keys(dependencies).length === 0) return;
  const began = process.hrtime.bigint();
  const npm = spawnSync('npm', ['install', '--omit=dev', '--no-audit', '--no-fund', '--loglevel=error'], { stdio: ['ignore', 2, 2] });
  result.install_ms = since(began);
  if (npm.status !== 0) {
    fail('error', new Error(`npm install failed with exit code ${npm.status}`), 'Runtime.Requirements');
    throw new Done();
  }
}

function invoke(handler, deadline) {
  return new Promise((resolve, reject) => {
    const context = {
      callbackWaitsForEmptyEventLoop: true,
      ...request.context,
      getRemainingTimeInMillis: () => Math.max(0, Math.round(deadline - performance.now())),
    };
    const callback = (error, value) => (error ? reject(error) : resolve(value));
    const value = handler(request.event, context, callback);
    if (value && typeof value.then === 'function') value.then(resolve, reject);
    // Without a promise or a callback the invocation ends with the event loop, and has no value.
    else process.once('beforeExit', () => resolve(null));
  });
}

async function main() {
  const layers = (request.layers || []).map((l) => path.resolve(l, 'nodejs', 'node_modules'));
  if (layers.length > 0) {
    process.env.NODE_PATH = [...layers, process.env.NODE_PATH].filter(Boolean).join(':');
    require('module').Module._initPaths();
  }
  install();
  let began = process.hrtime.bigint();
  const handler = await load();
  result.init_ms = since(began);
  began = process.hrtime.bigint();
  let value;
  try {
    value = await invoke(handler, performance.now() + request.timeout_ms);
  } catch (e) {
    result.duration_ms = since(began);
    return fail('error', e);
  }
  result.duration_ms = since(began);
  try {
    result.value = JSON.parse(JSON.stringify(value ?? null));
  } catch (e) {
    return fail('error', new Error('Unable to stringify response body: ' + e.message), 'Runtime.MarshalError');
  }
  finish('success');
}

process.on('uncaughtException', (e) => fail('error', e));
process.on('unhandledRejection', (e) => fail('error', e, 'Runtime.UnhandledPromiseRejection'));
main().catch((e) => { if (!(e instanceof Done)) fail('error', e); });
