// Ports that stay ours while a server is down, so that it comes back where its windows look for it. As crates/belfry-testkit has them.
import { once } from 'node:events';
import { createServer } from 'node:net';

/** Below the range from which the kernel gives ports to outgoing connections, and below that of belfry-testkit: neither can be in the way. */
const FIRST = 10_000;
const COUNT = 6_000;
let tried = 0;

/** A port of loopback that no other process of these tests takes until it is freed, or this process ends. */
export async function reservePort() {
  for (let step = 0; step < COUNT; step++) {
    // Processes start at different places, so that they seldom meet.
    const port = FIRST + ((process.pid * 97 + tried++) % COUNT);
    // A name that only one process of this machine can hold; the kernel frees it with us.
    const name = await listening({ path: `\0belfry-browser-port-${port}` });
    if (!name) continue;
    const probe = await listening({ host: '127.0.0.1', port });
    if (probe) {
      await closed(probe);
      name.unref();
      return { number: port, free: () => closed(name) };
    }
    await closed(name);
  }
  throw new Error(`no port of 127.0.0.1 between ${FIRST} and ${FIRST + COUNT} is free`);
}

/** null where somebody else does. */
async function listening(where) {
  const server = createServer().listen(where);
  return once(server, 'listening').then(
    () => server,
    (cause) => {
      if (cause.code === 'EADDRINUSE') return null;
      throw cause;
    },
  );
}

async function closed(server) {
  server.close();
  await once(server, 'close');
}
