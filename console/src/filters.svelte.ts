// The filters of a list. What they hold is in the address; what is typed goes there at once, and while one types fast when that pauses.
import { router } from './router.svelte';

const PAUSE_MS = 200;

/** For the script of a component, which may go while one types. */
export function filters(keys: readonly string[]) {
  const typing = new Map<string, { value: string; timer?: ReturnType<typeof setTimeout> | undefined }>();
  let typedAt = 0;
  const forget = () => {
    for (const { timer } of typing.values()) clearTimeout(timer);
    typing.clear();
  };
  $effect(() => forget);
  return {
    get some(): boolean {
      return keys.some((key) => router.query[key]);
    },
    /** What its field holds: as it was typed, also the space after a word that another one will follow. */
    text(key: string): string {
      const kept = router.query[key] ?? '';
      const typed = typing.get(key);
      return typed && (typed.timer || typed.value.trim() === kept) ? typed.value : kept;
    },
    later: (key: string) => (event: Event) => {
      const { value } = event.currentTarget as HTMLInputElement;
      clearTimeout(typing.get(key)?.timer);
      const timer = setTimeout(
        () => {
          typing.set(key, { value });
          router.set({ [key]: value.trim() });
        },
        // What comes after a pause is answered at once; of fast typing, its end.
        Date.now() < typedAt + PAUSE_MS ? PAUSE_MS : 0,
      );
      typedAt = Date.now();
      typing.set(key, { value, timer });
    },
    clear(): void {
      forget();
      router.set(Object.fromEntries(keys.map((key) => [key, ''])));
    },
  };
}
