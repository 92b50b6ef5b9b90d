// Short answers to what the user just did.
import { asFailure, Failure } from '../api/failure';
import { t } from '../i18n/messages.svelte';
import { said } from '../i18n/said.svelte';

export interface Toast {
  id: number;
  kind: 'done' | 'failed';
  text: string;
}

const DONE_MS = 6_000;

class ToastList {
  shown: Toast[] = $state.raw([]);
  private next = 1;

  done(text: string): void {
    const id = this.add({ kind: 'done', text });
    setTimeout(() => this.close(id), DONE_MS);
  }

  /** Stays until it is closed: an error must not vanish while one looks away. */
  failed(thrown: unknown): void {
    const { field, message } = asFailure(thrown);
    const away = thrown instanceof Failure && thrown.status === 0;
    this.add({ kind: 'failed', text: (field ? `${field}: ` : '') + (away ? t().banner.away : said(message)) });
  }

  close(id: number): void {
    this.shown = this.shown.filter((toast) => toast.id !== id);
  }

  private add(toast: Omit<Toast, 'id'>): number {
    const id = this.next++;
    this.shown = [...this.shown.slice(-4), { ...toast, id }];
    return id;
  }
}

export const toasts = new ToastList();
