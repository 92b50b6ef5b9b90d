// Where a job is shown.
import { href } from '../routes';

/** The namespace of the commands that hosts wrap by themselves (`dcron`). */
const WRAPPED = 'dcron';

/** A wrapped command is no job that the server has: its runs are what there is of it. */
export function jobPlace(namespace: string, name: string, wrapped = namespace === WRAPPED): string {
  return wrapped ? href('runs', {}, { job: `${namespace}/${name}` }) : href('job', { ns: namespace, name });
}
