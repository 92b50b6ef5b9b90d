// Server-sent events, however the network cuts them.
import { expect, it, vi } from 'vitest';

vi.mock('../../src/api/client', () => ({ reach: () => {} }));
vi.mock('../../src/api/contact.svelte', () => ({ apiAddress: () => '' }));

const { sseParser } = await import('../../src/api/sse');

const text = ': hello\n\nevent: output\nid: 1:4\ndata: {"a":1}\ndata: x\n\nevent: end\ndata: {}\n\n';
const whole = [
  { event: 'output', data: '{"a":1}\nx', id: '1:4' },
  { event: 'end', data: '{}', id: '1:4' },
];

it.each([1, 2, 3, 7, 1000])('events in pieces of %i characters', (size) => {
  const got: unknown[] = [];
  const parse = sseParser((event) => got.push(event));
  for (let at = 0; at < text.length; at += size) parse(text.slice(at, at + size));
  expect(got).toEqual(whole);
});
