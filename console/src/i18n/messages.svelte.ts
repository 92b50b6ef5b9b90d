// The language of the console. `t()` gives its texts; a text that a language lacks does not compile.
import { en } from './en';
import { zh } from './zh';

/** The shape of `en`, with any text in place of the English one. */
type Widened<T> = T extends string
  ? string
  : T extends (...given: infer A) => string
    ? (...given: A) => string
    : { [K in keyof T]: Widened<T[K]> };

export type Messages = Widened<typeof en>;
export type Language = 'en' | 'zh';

const KEPT_AS = 'belfry.language';
const all: Record<Language, Messages> = { en, zh };
export const languageNames: Record<Language, string> = { en: 'English', zh: '中文' };

function preferred(): Language {
  const kept = localStorage.getItem(KEPT_AS);
  if (kept === 'en' || kept === 'zh') return kept;
  return navigator.languages.some((language) => language.startsWith('zh')) ? 'zh' : 'en';
}

class I18n {
  language: Language = $state(preferred());
  messages: Messages = $derived(all[this.language]);

  choose(language: Language): void {
    this.language = language;
    localStorage.setItem(KEPT_AS, language);
  }
}

export const i18n = new I18n();

export function t(): Messages {
  return i18n.messages;
}

/** A text for a word of the API, such as a state; a word that is newer than the console is shown as it is. */
export function word<G extends Record<string, string>>(group: G, key: string): string {
  return group[key] ?? key;
}
