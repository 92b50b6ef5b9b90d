// A browser has few connections to a server, and each stream holds one: windows that nobody sees give theirs back.

const UNSEEN_MS = 20_000;

/** `leave` when nobody has seen the window for a while, `back` when it is seen again. Returns how to stop that. */
export function whenUnseen(leave: () => void, back?: () => void): () => void {
  let leaving: ReturnType<typeof setTimeout> | undefined;
  const look = () => {
    clearTimeout(leaving);
    if (document.hidden) leaving = setTimeout(leave, UNSEEN_MS);
    else back?.();
  };
  document.addEventListener('visibilitychange', look);
  return () => {
    clearTimeout(leaving);
    document.removeEventListener('visibilitychange', look);
  };
}
