// What the inputs of the form share: the draft, what the server said about it, and what can be suggested.
import { getContext, setContext } from 'svelte';

import type { Failure } from '../../api/failure';
import type { Draft } from './draft.svelte';

export interface Form {
  readonly draft: Draft;
  /** The refusal to be shown, if any. */
  readonly failure: Failure | undefined;
  readonly nodes: readonly string[];
  readonly scripts: readonly string[];
}

const KEY = Symbol('form');

export function shareForm(form: Form): void {
  setContext(KEY, form);
}

export function sharedForm(): Form {
  return getContext<Form>(KEY);
}

/** Whether a refusal is about this field or something inside it. */
export function isAbout(failure: Failure | undefined, path: string): boolean {
  const field = failure?.field;
  return field === path || Boolean(field?.startsWith(`${path}[`));
}
