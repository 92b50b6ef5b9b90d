// Serves a built console from a folder and passes everything else to a server, for binaries that do not hold the console themselves.
import { createReadStream, existsSync } from 'node:fs';
import { createServer, request } from 'node:http';
import { extname, join, normalize } from 'node:path';

const TYPES = { '.html': 'text/html; charset=utf-8', '.js': 'text/javascript', '.css': 'text/css', '.json': 'application/json', '.svg': 'image/svg+xml' };
// What the server sends with its own copy.
export const CSP =
  "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'";

/** What a proxy does that has a server at a path of its own: nothing else of it leads there. */
export async function serveUnder(prefix, upstream) {
  const server = createServer((asked, answer) => {
    if (!asked.url.startsWith(`${prefix}/`)) return answer.writeHead(404).end();
    pass(asked, answer, upstream, asked.url.slice(prefix.length));
  });
  const listening = await listen(server);
  return { ...listening, url: listening.url + prefix };
}

/** Returns the address, and how to stop. `upstream` is asked at each request: a server may come back on another port. */
export async function serveConsole(folder, upstream) {
  const server = createServer((asked, answer) => {
    const path = normalize(new URL(asked.url, 'http://x').pathname);
    const file = join(folder, path === '/' ? 'index.html' : path);
    if (asked.method === 'GET' && file.startsWith(folder) && existsSync(file) && TYPES[extname(file)]) {
      answer.writeHead(200, { 'content-type': TYPES[extname(file)], 'content-security-policy': CSP, 'cache-control': 'no-store' });
      createReadStream(file).pipe(answer);
      return;
    }
    pass(asked, answer, upstream());
  });
  return listen(server);
}

function pass(asked, answer, upstream, path = asked.url) {
  const { hostname, port } = new URL(upstream);
  const onward = request({ hostname, port, path, method: asked.method, headers: { ...asked.headers, host: `${hostname}:${port}` } }, (got) => {
    answer.writeHead(got.statusCode, got.headers);
    // A stream that is silent at first is open all the same.
    answer.flushHeaders();
    got.pipe(answer);
  });
  // As a proxy in between says it.
  onward.on('error', () => (answer.headersSent ? answer.destroy() : answer.writeHead(502).end()));
  answer.on('close', () => onward.destroy());
  asked.pipe(onward);
}

async function listen(server) {
  await new Promise((ready) => server.listen(0, '127.0.0.1', ready));
  return {
    url: `http://127.0.0.1:${server.address().port}`,
    stop: () => {
      server.closeAllConnections();
      return new Promise((done) => server.close(done));
    },
  };
}

if (process.argv[1]?.endsWith('serve.mjs')) {
  const [, , folder, upstream] = process.argv;
  console.log((await serveConsole(join(process.cwd(), folder), () => upstream)).url);
}
