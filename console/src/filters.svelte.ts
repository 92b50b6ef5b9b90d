// The filters of a list. What they hold is in the address; what is typed goes there when the typing pauses.
import { router } from './router.svelte';

const PAUSE_MS = 200;

/** For the script of a component, which may go while one types. */
export function filters(keys: readonly string[]) {
  const typing = new Map<string, ReturnType<typeof setTimeout>>();
  const forget = () => typing.forEach((timer) => clearTimeout(timer));
  $effect(() => forget);
  return {
    get some(): boolean {
      return keys.some((key) => router.query[key]);
    },
    later: (key: string) => (event: Event) => {
      const { value } = event.currentTarget as HTMLInputElement;
      clearTimeout(typing.get(key));
      typing.set(key, setTimeout(() => router.set({ [key]: value.trim() }), PAUSE_MS));
    },
    clear(): void {
      forget();
      router.set(Object.fromEntries(keys.map((key) => [key, ''])));
    },
  };
}
