// Unsaved changes, kept in this tab for whoever made them: a reload, a crash or a session that ends does not lose them.

function key(user: string, what: string): string {
  return `belfry.draft.${user}.${what}`;
}

/** `what`: what is edited, a job as `shop/nightly`. Null when nothing is to be kept. */
export function keepDraft(user: string, what: string, draft: object | null): void {
  try {
    if (draft) sessionStorage.setItem(key(user, what), JSON.stringify(draft));
    else sessionStorage.removeItem(key(user, what));
  } catch {
    // A full or forbidden storage: leaving the page still asks.
  }
}

export function keptDraft<T>(user: string, what: string): T | null {
  try {
    return JSON.parse(sessionStorage.getItem(key(user, what)) ?? 'null') as T | null;
  } catch {
    return null;
  }
}
