// The form has every field of the API's job document, as the schema has it, and none beside: a new field fails here until it has its place.
import { readFileSync } from 'node:fs';

import { expect, it } from 'vitest';

import formEn from '../../src/i18n/form.en.json';
import formZh from '../../src/i18n/form.zh.json';
import { ACTION_KINDS, allFields, groups } from '../../src/jobs/edit/fields';
import { leavesOf } from '../job-schema.mjs';

const document = JSON.parse(readFileSync(new URL('../../../docs/openapi.json', import.meta.url), 'utf8'));
const leaves = leavesOf(document.components.schemas.JobDocument);

it('every field of the schema is in the form, with the right kind of input', () => {
  const wanted = leaves.map(({ path, kind }) => `${path}: ${kind}`).toSorted();
  const shown = allFields.map(({ path, kind }) => `${path}: ${kind === 'long' ? 'text' : kind}`).toSorted();
  expect(shown).toEqual(wanted);
});

it('choices offer what the schema takes', () => {
  for (const { path, options } of leaves) {
    if (options) expect([path, ...(allFields.find((field) => field.path === path)?.options ?? [])]).toEqual([path, ...options]);
  }
});

it('what is said to be taken when a field is left out is what the schema says', () => {
  for (const { path, usual } of leaves) {
    if (usual !== undefined) expect([path, allFields.find((field) => field.path === path)?.usual]).toEqual([path, String(usual)]);
  }
});

it('every kind of action can be chosen', () => {
  const kinds = new Set(leaves.filter(({ path }) => path.startsWith('action.')).map(({ path }) => path.split('.')[1]));
  expect([...ACTION_KINDS].toSorted()).toEqual([...kinds].toSorted());
});

it('every field, choice and group has its texts in both languages', () => {
  for (const texts of [formEn, formZh] as { [key: string]: Record<string, unknown> }[]) {
    const fields = texts.fields as Record<string, [string, string]>;
    expect(Object.keys(fields).toSorted()).toEqual(allFields.map((field) => field.path).toSorted());
    expect(Object.values(fields).every(([label]) => label.length > 0)).toBe(true);
    expect(Object.keys(texts.groups ?? {})).toEqual(groups.map((group) => group.key));
    expect(Object.keys(texts.blocks ?? {}).toSorted()).toEqual(groups.flatMap((group) => group.blocks.map((block) => block.key)).toSorted());
    expect(Object.keys(texts.kinds ?? {}).toSorted()).toEqual([...ACTION_KINDS].toSorted());
    const options = texts.options as Record<string, Record<string, string>>;
    expect(Object.entries(options).map(([path, words]) => [path, ...Object.keys(words).toSorted()]).toSorted()).toEqual(
      allFields.flatMap((field) => (field.options ? [[field.path, ...field.options.toSorted()]] : [])).toSorted(),
    );
  }
  for (const section of ['edit', 'wrong', 'notes'] as const) expect(Object.keys(formZh[section])).toEqual(Object.keys(formEn[section]));
  const places = (text: string) => (text.match(/\{\d\}/g) ?? []).toSorted();
  for (const [key, text] of Object.entries(formEn.edit)) expect([key, ...places(formZh.edit[key as keyof typeof formZh.edit])]).toEqual([key, ...places(text)]);
  const sentences = JSON.stringify(formZh).match(/[a-z]{3,} [a-z]{2,} [a-z]{2,}/gi);
  expect(sentences).toBe(null);
});
