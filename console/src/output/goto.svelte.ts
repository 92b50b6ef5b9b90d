// Goes to a line that is asked for: once, when it is asked for or when it comes; not again with the lines after it.
import { untrack } from 'svelte';

/** For the script of a component. `line`: where it stands; undefined before it has come. */
export function goTo(asked: () => unknown, line: () => number | undefined, go: (line: number | undefined) => void): void {
  const come = $derived(line() !== undefined);
  $effect(() => {
    asked();
    if (come) untrack(() => go(line()));
  });
}
