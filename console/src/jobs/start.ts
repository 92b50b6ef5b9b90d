// What can be started with one press. Pure.
import type { Run } from '../api/runs';
import type { Job } from '../api/views';
import { isOpen } from '../runs/states';

export function startsAtOnce(job: Job): boolean {
  // What always runs is not started; what runs on each node only where somebody says so.
  return !('service' in job.document.action) && job.document.run_on !== 'each';
}

/** The job that another run would be of: a host's own cron, as a wrapped command, is none that the server has. */
export function jobToRunAgain(run: Run): { ns: string; name: string } | null {
  return isOpen(run.state) || run.trigger === 'wrapped' ? null : { ns: run.namespace, name: run.job_name };
}
