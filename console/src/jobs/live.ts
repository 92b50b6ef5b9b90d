// A job as it is after one of its runs changed: what a live event says, put into what a list shows. Pure.
import type { Job, LastRun } from '../api/views';
import type { Schemas } from '../api/client';
import { isOpen } from '../runs/states';

type Run = Schemas['RunView'];

const RESULTS_KEPT = 60;

export function withRun(job: Job, run: Run): Job {
  if (run.namespace !== job.namespace || run.job_name !== job.name) return job;
  const known = job.recent.find((recent) => recent.id === run.id);
  const oldest = job.recent[RESULTS_KEPT - 1];
  const forgotten = !known && oldest !== undefined && run.id < oldest.id;
  // What has ended does not go on: such an event is older than what is known.
  if (isOpen(run.state) && (forgotten || (known && !isOpen(known.state)))) return job;
  const result = { id: run.id, state: run.state, planned: run.planned, duration_ms: run.duration_ms ?? null };
  const others = job.recent.filter((recent) => recent.id !== run.id);
  // Ids begin with the planned instant, so their order is the order of time.
  const recent = [result, ...others].toSorted((a, b) => (a.id < b.id ? 1 : -1)).slice(0, RESULTS_KEPT);
  // By name, not by number: what is known may be from before this event or from after it.
  const running = job.running.filter((id) => id !== run.id);
  if (run.state === 'running') running.push(run.id);
  const changed: Job = { ...job, recent, running };
  // One that is older than all that is known of may have been counted already.
  const endedNow = !isOpen(run.state) && (known ? isOpen(known.state) : !forgotten);
  if (!endedNow) return changed;
  if (job.runs !== undefined) changed.runs = job.runs + 1;
  if (job.failed_in_a_row !== undefined) changed.failed_in_a_row = run.state === 'succeeded' ? 0 : job.failed_in_a_row + (isBad(run.state) ? 1 : 0);
  if (job.last_run !== undefined && (job.last_run === null || job.last_run.id <= run.id)) changed.last_run = lastRun(run);
  return changed;
}

function isBad(state: string): boolean {
  return state === 'failed' || state === 'timed_out' || state === 'lost';
}

function lastRun(run: Run): LastRun {
  return {
    id: run.id,
    state: run.state,
    planned: run.planned,
    started_at: run.started_at ?? null,
    ended_at: run.ended_at ?? null,
    duration_ms: run.duration_ms ?? null,
    node_name: run.node_name ?? null,
    exit_code: run.exit_code ?? null,
  };
}

/** The newest ended run, also where the server does not say it by itself. */
export function newestEnded(job: Job): { id: string; state: string; at: string | null; took: number | null } | null {
  if (job.last_run) {
    const { id, state, ended_at, planned, duration_ms } = job.last_run;
    return { id, state, at: ended_at ?? planned, took: duration_ms ?? null };
  }
  const ended = job.recent.find((run) => !isOpen(run.state));
  return ended ? { id: ended.id, state: ended.state, at: ended.planned ?? null, took: ended.duration_ms ?? null } : null;
}

export function runningNow(job: Job): number {
  return job.running.length;
}

export function failuresInARow(job: Job): number {
  if (job.failed_in_a_row !== undefined) return job.failed_in_a_row;
  let count = 0;
  for (const run of job.recent) {
    if (run.state === 'succeeded') break;
    if (isBad(run.state)) count++;
  }
  return count;
}
