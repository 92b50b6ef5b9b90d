// Says how much JavaScript the built console is, packed as the server sends it, and fails above what the project allows.
import { execFileSync } from 'node:child_process';
import { readdirSync } from 'node:fs';
import { fileURLToPath } from 'node:url';

const JS_GZIP_BYTES_MAX = 120 * 1000;
const folder = new URL('../dist/assets/', import.meta.url);
let total = 0;
for (const name of readdirSync(folder).sort()) {
  // Those that `cargo xtask console` has packed are not packed again.
  if (name.endsWith('.gz')) continue;
  // As xtask/src/console.rs packs it, which is smaller than what Node makes of it.
  const bytes = execFileSync('gzip', ['-9', '-n', '-c', fileURLToPath(new URL(name, folder))]).length;
  console.log(`${String(bytes).padStart(8)}  ${name}`);
  if (name.endsWith('.js')) total += bytes;
}
console.log(`${String(total).padStart(8)}  all JavaScript, of ${JS_GZIP_BYTES_MAX}`);
if (total > JS_GZIP_BYTES_MAX) process.exit(1);
