// A list of runs that follows live events, newest first. Pure.
import type { Run, RunFilter } from '../api/runs';
import { isOpen } from './states';

/** Ids begin with the planned instant, so their order is the order of time. */
export function withRuns(known: readonly Run[], changed: readonly Run[]): Run[] {
  const fresh = new Map(changed.map((run) => [run.id, run]));
  const kept = known.map((run) => merged(run, fresh.get(run.id)));
  const ids = new Set(known.map((run) => run.id));
  const added = changed.filter((run) => !ids.has(run.id));
  if (added.length === 0) return kept;
  return [...added, ...kept].toSorted((a, b) => (a.id < b.id ? 1 : -1));
}

/** Events do not carry the command, which does not change. What has ended does not go on: such an event is older than what is known. */
export function merged(run: Run, change: Run | undefined): Run {
  if (!change || (isOpen(change.state) && !isOpen(run.state))) return run;
  return { ...run, ...change, command: change.command ?? run.command ?? null };
}

/** Whether a run that the server gave for these states, this node, by its id, and from this instant on is still one of them. Its job may have another name than it had. */
export function remains(run: Run, states: string | undefined, node: string | undefined, from?: string): boolean {
  const wanted = states?.split(',').filter(Boolean) ?? [];
  return (wanted.length === 0 || wanted.includes(run.state)) && (!node || node === run.node) && !(from && Date.parse(run.planned) < Date.parse(from));
}

/** Whether a run that an event tells of belongs into a list; the server decides in the same way when the list is read. */
export function matches(run: Run, filter: RunFilter): boolean {
  // A name alone is of the namespace `default`.
  if (filter.job && (filter.job.includes('/') ? filter.job : `default/${filter.job}`) !== `${run.namespace}/${run.job_name}`) return false;
  if (filter.namespace && filter.namespace !== run.namespace) return false;
  if (!remains(run, filter.state, undefined, filter.from)) return false;
  if (filter.node && filter.node !== run.node_name && filter.node !== run.node) return false;
  return !(filter.to && Date.parse(run.planned) >= Date.parse(filter.to));
}
