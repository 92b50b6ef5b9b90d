// Says how much JavaScript the built console is, gzipped, and fails above what the project allows.
import { readdirSync, readFileSync } from 'node:fs';
import { gzipSync } from 'node:zlib';

const JS_GZIP_BYTES_MAX = 120 * 1000;
const folder = new URL('../dist/assets/', import.meta.url);
let total = 0;
for (const name of readdirSync(folder).sort()) {
  const bytes = gzipSync(readFileSync(new URL(name, folder)), { level: 9 }).length;
  console.log(`${String(bytes).padStart(8)}  ${name}`);
  if (name.endsWith('.js')) total += bytes;
}
console.log(`${String(total).padStart(8)}  all JavaScript, of ${JS_GZIP_BYTES_MAX}`);
if (total > JS_GZIP_BYTES_MAX) process.exit(1);
