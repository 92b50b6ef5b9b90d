// Both languages have the same texts; the compiler sees the shape, this sees texts that were forgotten or left in English.
import { describe, expect, it } from 'vitest';

import { en } from '../../src/i18n/en';
import { zh } from '../../src/i18n/zh';

function texts(node: unknown, path = ''): [string, string][] {
  if (typeof node === 'string') return [[path, node]];
  if (typeof node === 'function') return [[path, String((node as (...given: unknown[]) => unknown)(...sample(node.length)))]];
  return Object.entries(node as object).flatMap(([key, value]) => texts(value, path ? `${path}.${key}` : key));
}
/** A list of one number works as a number, as a text and as a list. */
function sample(count: number): unknown[] {
  return Array.from({ length: count }, (_, i) => [i + 2]);
}

const english = new Map(texts(en));
const chinese = new Map(texts(zh));
/** A command to type, and the offer to switch, which stands in the other language on purpose. */
const SAME_ON_PURPOSE = /^(palette\.language|jobs\.noneHint)$/;

describe('the languages', () => {
  it('have the same keys', () => {
    expect([...chinese.keys()]).toEqual([...english.keys()]);
  });
  it('have no empty text', () => {
    expect([...english, ...chinese].filter(([, text]) => text.trim() === '')).toEqual([]);
  });
  it('leave no English sentence on Chinese pages', () => {
    const left = [...chinese].filter(([key, text]) => !SAME_ON_PURPOSE.test(key) && /[a-z]{3,} [a-z]{2,} [a-z]{2,}/i.test(text));
    expect(left).toEqual([]);
  });
  it('say job, server and coordinator as the READMEs do', () => {
    expect([...english].filter(([, text]) => /\b(task|execution)s?\b/i.test(text))).toEqual([]);
    expect([...chinese].filter(([, text]) => /作业|服务器|协调器/.test(text))).toEqual([]);
  });
});
