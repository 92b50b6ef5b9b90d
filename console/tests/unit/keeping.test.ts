// What the pages for keeping a cluster make of facts.
import { describe, expect, it } from 'vitest';

import { inOneLine, revisionOf, sidesOf, type Entry } from '../../src/audit/detail';
import { statesOf, used, type Node } from '../../src/nodes/facts';

const node = (facts: Partial<Node>) => ({ connected: true, excluded: false, draining: false, spool_full: false, disk_low: false, clock_off: false, ...facts }) as Node;
const entry = (facts: Partial<Entry>) => ({ seq: 1, at: '', actor: 'a', action: 'job.update', subject: 'shop/nightly', detail: { revision: 3 }, ...facts }) as Entry;

describe('a node', () => {
  it('takes work unless something says otherwise, the most telling first', () => {
    expect(statesOf(node({}))).toEqual(['ready']);
    expect(statesOf(node({ connected: false, draining: true }))).toEqual(['away', 'draining']);
    expect(statesOf(node({ clock_off: true }))).toEqual(['clock_off']);
  });
  it('is as full as it is, and unknown when nothing was measured', () => {
    expect(used(100, 25)).toBe(0.75);
    expect(used(0, 0)).toBe(null);
  });
});

describe('an entry of the audit', () => {
  it('is one line of what was touched', () => {
    expect(inOneLine({ weight: 3, labels: { zone: 'a' }, slots: null })).toBe('weight: 3 · labels: {"zone":"a"}');
    expect(inOneLine(null)).toBe('');
  });
  it('names the revision that it made out of another', () => {
    expect(revisionOf(entry({}))).toEqual({ ns: 'shop', name: 'nightly', revision: 3 });
    expect(revisionOf(entry({ detail: { revision: 1 } }))).toBe(null);
    expect(revisionOf(entry({ action: 'script.put' }))).toBe(null);
  });
  it('has two sides where the detail has them', () => {
    expect(sidesOf({ from: 1, to: { a: 2 } })).toEqual({ before: '1', after: '{\n  "a": 2\n}' });
    expect(sidesOf({ revision: 2 })).toBe(null);
  });
});
