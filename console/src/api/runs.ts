// The requests about runs that pages share.
import { client, take, type Schemas } from './client';
import { asOneWish } from './key';
import type { Page } from './pager.svelte';

export type Run = Schemas['RunView'];

export interface RunFilter {
  job?: string | undefined;
  namespace?: string | undefined;
  state?: string | undefined;
  node?: string | undefined;
  from?: string | undefined;
  to?: string | undefined;
}

export const RUNS_PAGE = 100;

export function listRuns(filter: RunFilter, cursor: string | undefined, signal: AbortSignal, limit = RUNS_PAGE): Promise<Page<Run>> {
  return take(client.GET('/api/v1/runs', { params: { query: { ...filter, cursor, limit } as object }, signal }));
}

export function killRun(id: string) {
  return take(client.POST('/api/v1/runs/{id}/kill', { params: { path: { id } } }));
}

export function rerun(id: string) {
  return asOneWish(id, (key) => take(client.POST('/api/v1/runs/{id}/rerun', { params: { path: { id } }, body: { idempotency_key: key } })));
}
