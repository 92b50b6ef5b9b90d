// What the API says, which is English, in the language of the page.
import { reach } from '../api/client';
import { i18n } from './messages.svelte';
import zh from './said.zh.json?url';
import { translator, type Templates } from './templates';

let chinese: ((text: string) => string) | undefined = $state.raw();
let tried = $state(false);

/** To be called in an effect, and again when the server is back: without the templates one reads what the server wrote. */
export function readSaid(): void {
  if (i18n.language === 'en' || chinese) return;
  reach(new URL(zh, import.meta.url))
    .then((answer) => answer.json())
    .then(({ ours, others }: Record<string, Templates>) => (chinese = translator({ ...ours, ...others })))
    .catch(() => (tried = true));
}

/** Nothing until the templates are there, which is before anything is said. */
export function said(text: string): string {
  return i18n.language === 'en' ? text : (chinese?.(text) ?? (tried ? text : ''));
}
