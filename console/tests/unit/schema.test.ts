// The generated types are those of the API document.
import { readFileSync } from 'node:fs';

import openapiTS, { astToString } from 'openapi-typescript';
import { expect, it } from 'vitest';

it('the types are up to date (else: npm run types)', async () => {
  const document = new URL('../../../docs/openapi.json', import.meta.url);
  const fresh = astToString(await openapiTS(document));
  const kept = readFileSync(new URL('../../src/api/schema.ts', import.meta.url), 'utf8');
  // The command puts a line about itself on top.
  expect(kept.slice(kept.indexOf('export interface paths'))).toBe(fresh.slice(fresh.indexOf('export interface paths')));
}, 30_000);
