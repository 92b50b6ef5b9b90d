// What grants allow.
import { expect, it } from 'vitest';

import { allows, allowsEverywhere, allowsSomewhere } from '../../src/roles';

it('a role includes the lesser ones, in its namespace', () => {
  const grants = { shop: 'editor' };
  expect(allows(grants, 'operator', 'shop')).toBe(true);
  expect(allows(grants, 'admin', 'shop')).toBe(false);
  expect(allows(grants, 'viewer', 'bank')).toBe(false);
});
it('a star counts everywhere', () => {
  expect(allows({ '*': 'viewer', shop: 'admin' }, 'viewer', 'bank')).toBe(true);
  expect(allowsEverywhere({ '*': 'viewer', shop: 'admin' }, 'admin')).toBe(false);
  expect(allowsSomewhere({ '*': 'viewer', shop: 'admin' }, 'admin')).toBe(true);
});
it('a role that is newer than the console allows nothing', () => {
  expect(allows({ shop: 'emperor' }, 'viewer', 'shop')).toBe(false);
});
