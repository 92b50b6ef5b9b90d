// Unsaved changes, kept in this tab for whoever made them: a reload, a crash or a session that ends does not lose them.

export interface Kept {
  text: string;
  base: Record<string, unknown>;
  revision: number | null;
}

function key(user: string, job: string): string {
  return `belfry.draft.${user}.${job}`;
}

export function keepDraft(user: string, job: string, draft: Kept | null): void {
  try {
    if (draft) sessionStorage.setItem(key(user, job), JSON.stringify(draft));
    else sessionStorage.removeItem(key(user, job));
  } catch {
    // A full or forbidden storage: leaving the page still asks.
  }
}

export function keptDraft(user: string, job: string): Kept | null {
  try {
    return JSON.parse(sessionStorage.getItem(key(user, job)) ?? 'null') as Kept | null;
  } catch {
    return null;
  }
}
