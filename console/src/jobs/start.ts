// What can be started with one press. Pure.
import type { Run } from '../api/runs';
import type { Job } from '../api/views';
import { isOpen } from '../runs/states';

/** What always runs is not started. */
export function isStarted(job: Job): boolean {
  return !('service' in job.document.action);
}

/** What runs on each node is started only where somebody says so; again, where it ran. */
export function startsAtOnce(job: Job): boolean {
  return isStarted(job) && job.document.run_on !== 'each';
}

/** The job that another run would be of: a host's own cron, as a wrapped command, is none that the server has. */
export function jobToRunAgain(run: Run): { ns: string; name: string } | null {
  return isOpen(run.state) || run.trigger === 'wrapped' ? null : { ns: run.namespace, name: run.job_name };
}
