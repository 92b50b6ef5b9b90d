// A real Belfry for the browser tests: `belfry up` in a temporary folder on a port of its own, and the console from CONSOLE_DIST, else from the binary, else from dist.
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { setTimeout as wait } from 'node:timers/promises';

import { reservePort } from './ports.mjs';
import { serveConsole } from './serve.mjs';

const BINARY = process.env.BELFRY_BIN;
const READY_MS = 60_000;

/** Asks until it is so; says what it waited for when it never is. */
export async function until(what, ask, limit = READY_MS) {
  const end = Date.now() + limit;
  for (;;) {
    const got = await ask();
    if (got) return got;
    if (Date.now() > end) throw new Error(`waited ${limit} ms in vain: ${what}`);
    await wait(50);
  }
}

class Process {
  constructor(args, env = {}) {
    this.log = '';
    this.child = spawn(BINARY, args, { stdio: ['ignore', 'pipe', 'pipe'], env: { ...process.env, ...env } });
    for (const stream of [this.child.stdout, this.child.stderr]) stream.on('data', (bytes) => (this.log += bytes));
    this.ended = once(this.child, 'exit');
  }

  async stop(signal = 'SIGTERM') {
    if (this.child.exitCode !== null || this.child.signalCode !== null) return;
    // One that a failed test left frozen could not hear it.
    this.child.kill('SIGCONT');
    this.child.kill(signal);
    const timer = setTimeout(() => this.child.kill('SIGKILL'), 10_000);
    await this.ended;
    clearTimeout(timer);
  }
}

/** `kind`: `up`, or `server` for a cluster that nodes join. `prepare` is given the data folder before anything is started on it. */
export async function startBelfry({ kind = 'up', flags = [], prepare = () => {} } = {}) {
  if (!BINARY) throw new Error('BELFRY_BIN must name the belfry binary that is tested');
  const folder = mkdtempSync(join(tmpdir(), 'belfry-browser-'));
  prepare(join(folder, 'server'));
  const port = await reservePort();
  const base = `http://127.0.0.1:${port.number}`;
  // Who joined finds it there again when it comes back.
  const joined = kind === 'server' && (await reservePort());
  const agents = joined ? ['--listen-agents', `127.0.0.1:${joined.number}`] : ['--name', 'alpha', '--slots', '8', '--allow-root'];
  const args = [kind, '--data', join(folder, 'server'), '--listen', `127.0.0.1:${port.number}`, '--default-timezone', 'Europe/Berlin', ...agents, ...flags];
  const processes = [];
  let server;
  let front;
  let holds;
  const start = async () => {
    server = new Process([...args, '--quit-time', '1s'].filter((_, index, all) => kind === 'up' || index < all.length - 2));
    processes.push(server);
    await until(`${kind} answers`, async () => {
      if (server.child.exitCode !== null) throw new Error(`belfry ${kind} ended:\n${server.log}`);
      return fetch(`${base}/readyz`).then((answer) => answer.ok, () => false);
    });
  };
  const stop = async () => {
    for (const one of processes.toReversed()) await one.stop();
    await front?.stop();
    await port.free();
    if (joined) await joined.free();
    rmSync(folder, { recursive: true, force: true });
  };
  try {
    await start();
    holds = await serves(base);
    front = holds && !process.env.CONSOLE_DIST ? { url: base, stop: async () => {} } : await serveConsole(resolve(process.env.CONSOLE_DIST ?? 'dist'), () => base);
  } catch (cause) {
    // Nobody else can: what goes on would keep this process from ending.
    await stop();
    throw cause;
  }
  const read = (name) => readFileSync(join(folder, 'server', name), 'utf8').trim();

  return {
    url: front.url,
    base,
    /** Whether the binary holds a console, also where another one is looked at. */
    holds,
    password: read('admin-password'),
    token: read('cli-token'),
    restart: start,
    halt: () => server.stop('SIGKILL'),
    /** There, but silent; until it goes on. */
    freeze: () => server.child.kill('SIGSTOP'),
    thaw: () => server.child.kill('SIGCONT'),
    /** The body of an answer; a refusal is thrown, unless `status` is asked for. */
    async api(method, path, body, { token = read('cli-token'), status = false, headers = {} } = {}) {
      const answer = await fetch(`${base}/api/v1${path}`, {
        method,
        headers: { authorization: `Bearer ${token}`, ...(body === undefined ? {} : { 'content-type': 'application/json' }), ...headers },
        ...(body === undefined ? {} : { body: JSON.stringify(body) }),
      });
      const got = await answer.json().catch(() => null);
      if (status) return { status: answer.status, body: got };
      if (!answer.ok) throw new Error(`${method} ${path}: ${answer.status} ${JSON.stringify(got)}`);
      return got;
    },
    /** Another process of the same binary: an agent that joins. */
    run(...given) {
      const made = new Process(given);
      processes.push(made);
      return made;
    },
    /** The last that its processes said. */
    log: () => processes.map((one) => one.log.slice(-4_000)).join('\n'),
    folder,
    stop,
  };
}

async function serves(base) {
  const answer = await fetch(`${base}/`);
  return (await answer.text()).includes('id="console"');
}

/** Waits for the end of a run. */
export function ended(belfry, id) {
  return until(`run ${id} ends`, async () => {
    const run = await belfry.api('GET', `/runs/${id}`);
    return run.ended_at ? run : null;
  });
}
