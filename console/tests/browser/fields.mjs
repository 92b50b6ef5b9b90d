// Fills and reads the fields of the job form as a person does, with a sample for every field of the API's schema.
import { readFileSync } from 'node:fs';

import { leavesOf } from '../job-schema.mjs';

const openapi = JSON.parse(readFileSync(new URL('../../../docs/openapi.json', import.meta.url), 'utf8'));
export const leaves = leavesOf(openapi.components.schemas.JobDocument);

/** Where any text would be refused, or would not go with the others. A new field gets a sample by its kind. */
const SAMPLES = {
  namespace: 'default',
  timezone: 'Asia/Shanghai',
  schedule: ['0 4 * * *', '@hourly'],
  placement: { sticky: '2d' },
  overlap: 'queue',
  when_cut_off: 'stop',
  'window.from': '2026-12-01T00:00:00Z',
  'window.until': '2027-12-01T00:00:00Z',
  'retry.on': ['failed', 'exit:75'],
  'webhook.on': ['failed', 'lost'],
  'webhook.url': 'https://example.org/hook',
  'limits.open_files': 64,
  'as.user': 'nobody',
  'as.group': 'nogroup',
  'as.directory': '/tmp',
  'as.env': { A: 'one', B_C: 'two: three' },
  'as.umask': '027',
  'signature.file': '/bin/true',
  'signature.sha256': 'a'.repeat(64),
  'action.exec.argv': ['/bin/true', '--flag', '', 'two\nlines'],
  'action.script.body': '#!/bin/bash\necho hi\n',
  'action.script.interpreter': '/bin/bash',
  'action.service.argv': ['/bin/sh', '-c', 'sleep 600', ''],
};
const BY_KIND = { text: 'some text', duration: '45s', size: '64MiB', number: 0.5, integer: 3, list: ['a', 'b'], numbers: [200, 204], map: { a: 'one', 'b-c': 'two: three' }, any: { a: [1, 'x'] } };

export function sampleOf(leaf) {
  if (leaf.path in SAMPLES) return SAMPLES[leaf.path];
  if (leaf.kind === 'switch') return leaf.usual !== true;
  return leaf.options ? leaf.options.find((option) => option !== leaf.usual) : BY_KIND[leaf.kind];
}

export async function openGroups(page) {
  await page.evaluate(() => document.querySelectorAll('main details').forEach((group) => (group.open = true)));
}

export async function fill(page, leaf, value) {
  const field = page.locator(`[data-field="${leaf.path}"]`);
  if (leaf.kind === 'switch') return field.locator('input').setChecked(value);
  if (leaf.kind === 'choice') return field.locator('select').selectOption(value);
  if (leaf.kind === 'placement') {
    await field.locator('select').selectOption(typeof value === 'string' ? value : 'sticky');
    if (typeof value !== 'string') await field.locator('input').fill(value.sticky);
    return undefined;
  }
  if (leaf.kind === 'map') {
    for (const [index, [key, text]] of Object.entries(value).entries()) {
      const row = field.locator('li').nth(index);
      await row.locator('input').fill(key);
      await row.locator('textarea').fill(text);
    }
    return undefined;
  }
  if (['list', 'numbers', 'schedule'].includes(leaf.kind)) {
    for (const [index, item] of [value].flat().entries()) {
      const input = field.locator('li').nth(index).locator('input, textarea');
      // What was never typed in is no item.
      if (item === '') await input.fill('-');
      await input.fill(String(item));
    }
    return undefined;
  }
  return field.locator('input, textarea').first().fill(leaf.kind === 'any' ? JSON.stringify(value) : String(value));
}

export function shown(page, leaf) {
  return page.locator(`[data-field="${leaf.path}"]`).evaluate((field, kind) => {
    // The last one is for one more.
    const texts = () => [...field.querySelectorAll('li input, li textarea')].map((input) => input.value).slice(0, -1);
    if (kind === 'switch') return field.querySelector('input').checked;
    if (kind === 'placement') return field.querySelector('input') ? { sticky: field.querySelector('input').value } : field.querySelector('select').value;
    if (kind === 'choice') return field.querySelector('select').value;
    if (kind === 'map') return Object.fromEntries([...field.querySelectorAll('li')].map((row) => [row.querySelector('input').value, row.querySelector('textarea').value]).filter(([key]) => key !== ''));
    if (kind === 'list' || kind === 'schedule') return texts();
    if (kind === 'numbers') return texts().map(Number);
    const { value } = field.querySelector('input, textarea');
    return kind === 'number' || kind === 'integer' ? Number(value) : value;
  }, leaf.kind);
}

export function valueAt(document, path) {
  return path.split('.').reduce((at, key) => at?.[key], document);
}

export function put(document, path, value) {
  const keys = path.split('.');
  const last = keys.pop();
  let at = document;
  for (const key of keys) at = at[key] ??= {};
  at[last] = value;
}
