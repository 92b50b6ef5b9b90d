// The current place, kept in step with the address bar. Pages read `router.query` and write it with `router.set`.
import { formatPlace, parsePlace, type Place, type Query } from './place';
import { findRoute } from './routes';

class Router {
  place: Place = $state.raw(parsePlace(location.hash));
  /** The path of the page that is mounted: behind the place while a page is loaded. */
  mounted = $state('');
  found = $derived(findRoute(this.place.path));
  /** Asked before another page is shown; false stays. A page with unsaved changes sets it. */
  mayLeave: ((to: string) => boolean) | null = null;

  /** How far down a page was when one left it, after one came back to it. */
  left = 0;

  constructor() {
    addEventListener('hashchange', () => this.read());
    // Also a link that is followed by a key is clicked, and before one goes.
    addEventListener('click', () => this.note(), true);
  }

  get query(): Query {
    return this.place.query;
  }

  go(hash: string, how: { replace?: boolean } = {}): void {
    if (how.replace) history.replaceState(null, '', hash);
    else {
      this.note();
      location.hash = hash;
    }
    this.read();
  }

  /** Changes some of the query; what is undefined or empty goes away. Typing in a filter replaces, so that "back" leaves the page. */
  set(changes: Readonly<Record<string, string | undefined>>, how: { replace?: boolean } = { replace: true }): void {
    this.go(formatPlace(this.place.path, { ...this.place.query, ...changes }), how);
  }

  /** The browser keeps it with the place: for who comes back to it. */
  private note(): void {
    history.replaceState({ left: scrollY }, '');
  }

  private read(): void {
    const next = parsePlace(location.hash);
    if (next.path !== this.place.path && this.mayLeave?.(location.hash) === false) {
      history.replaceState(null, '', formatPlace(this.place.path, this.place.query));
      return;
    }
    this.left = (history.state as { left?: number } | null)?.left ?? 0;
    this.place = next;
  }
}

export const router = new Router();
