// A job as it is after one of its runs changed: what a live event says, put into what a list shows. Pure.
import type { Job } from '../api/views';
import type { Schemas } from '../api/client';
import { BAD_STATES, isOpen } from '../runs/states';

type Run = Schemas['RunView'];

/** As many as are asked for with each job. */
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
  if (isOpen(run.state) || forgotten) return changed;
  // One that had ended is corrected: it was given up as lost, and its result came late.
  if (!known || isOpen(known.state)) changed.runs++;
  // From the newest success on, as the server does; where none is known of, by what this run changes.
  const success = recent.findIndex(({ state }) => state === 'succeeded');
  changed.failed_in_a_row = success < 0 ? job.failed_in_a_row + failures([result]) - failures(known ? [known] : []) : failures(recent.slice(0, success));
  if (!job.last_run || job.last_run.id <= run.id) changed.last_run = run;
  return changed;
}

/** Those that were started and did not succeed, which a killed one did not either. */
function failures(runs: Job['recent']): number {
  return runs.filter(({ state }) => state === 'killed' || BAD_STATES.includes(state)).length;
}
