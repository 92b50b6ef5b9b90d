// Where one was in a long list when one left it, for whoever comes back to it.
import { tick } from 'svelte';

import type { Pager } from './api/pager.svelte';
import { router } from './router.svelte';

/** Those of a list are at least so high: what was in view is read again, and little more. */
const ROW_PX = 40;

/** In place of `restart`: where one comes back, as far as one had come. */
export async function restartWhereLeft<T>(pager: Pager<T>, load: Parameters<Pager<T>['restart']>[0]): Promise<void> {
  const { left } = router;
  router.left = 0;
  await pager.restart(load, left && (left + innerHeight) / ROW_PX);
  await tick();
  // Unless one has gone on meanwhile.
  if (left && !pager.first) scrollTo(0, left);
}
