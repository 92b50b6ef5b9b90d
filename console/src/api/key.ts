// A key that names one wish of the user's, so that asking twice for it is asking once.
import { asFailure } from './failure';

/** After so long whoever asks again may well want it again. */
const SAME_WISH_MS = 600_000;

/** Of what was asked for and not answered, by what that is. */
const unanswered = new Map<string, { key: string; at: number }>();

/** Whoever asks for the same before there was an answer, asks with the same key. */
export async function asOneWish<T>(what: unknown, ask: (key: string) => Promise<T>): Promise<T> {
  const wanted = JSON.stringify(what);
  const known = unanswered.get(wanted);
  const wish = known && Date.now() - known.at < SAME_WISH_MS ? known : { key: newKey(), at: Date.now() };
  unanswered.set(wanted, wish);
  try {
    const answer = await ask(wish.key);
    unanswered.delete(wanted);
    return answer;
  } catch (thrown) {
    const { status, code } = asFailure(thrown);
    if (status !== 0 && code !== 'outcome_unknown') unanswered.delete(wanted);
    throw thrown;
  }
}

/** Also where the page came over plain HTTP, and browsers have no `randomUUID`. */
function newKey(): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, '0')).join('');
}
