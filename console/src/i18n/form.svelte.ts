// The texts of the job editor that are plain. They are many, so they are data beside the program: only the editor reads them, in one language.
import { reach } from '../api/client';
import type { ActionKind, BlockKey, ChoicePath, FieldPath, GroupKey } from '../jobs/edit/fields';
import en from './form.en.json?url';
import zh from './form.zh.json?url';
import { i18n, type Language } from './messages.svelte';

type English = typeof import('./form.en.json');

export interface FormMessages {
  groups: Record<GroupKey, string>;
  blocks: Record<BlockKey, string>;
  kinds: Record<ActionKind, string>;
  /** Label and help. */
  fields: Record<FieldPath, [label: string, help: string]>;
  options: Record<ChoicePath, Record<string, string>>;
  edit: English['edit'];
  /** What is wrong with YAML that cannot be read. */
  wrong: English['wrong'];
  /** What a clock change does to a fire. */
  notes: Record<string, string>;
}

const files: Record<Language, string> = { en, zh };

class FormTexts {
  private read: Partial<Record<Language, FormMessages>> = $state.raw({});
  /** Undefined until they are read. */
  messages: FormMessages | undefined = $derived(this.read[i18n.language]);

  /** To be called in an effect: reads what the language of the moment lacks. */
  async ask(language: Language): Promise<void> {
    if (this.read[language]) return;
    const answer = await reach(new URL(files[language], import.meta.url));
    this.read = { ...this.read, [language]: (await answer.json()) as FormMessages };
  }
}

export const formTexts = new FormTexts();

/** Inside the form, which is shown only when they are there. */
export function form(): FormMessages {
  return formTexts.messages as FormMessages;
}

/** With these in its places `{0}`, `{1}`. */
export function filled(text: string, ...values: unknown[]): string {
  return text.replace(/\{(\d)\}/g, (_, place: string) => String(values[Number(place)]));
}
