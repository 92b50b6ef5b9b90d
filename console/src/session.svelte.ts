// Who is signed in and what they may do. A session that ends leads to the login page, and from there back to where one was.
import { client, take } from './api/client';
import { contact } from './api/contact.svelte';
import { asFailure } from './api/failure';
import type { components } from './api/schema';
import { allows, allowsEverywhere, allowsSomewhere, type Role } from './roles';
import { href, routeOf } from './routes';
import { router } from './router.svelte';

type WhoAmI = components['schemas']['WhoAmI'];

class Session {
  me: WhoAmI | null = $state.raw(null);
  /** False until the server has said whether there is a session. */
  known = $state(false);

  constructor() {
    contact.onUnauthorized = () => this.ended();
  }

  async ask(): Promise<void> {
    try {
      this.me = await take(client.GET('/api/v1/whoami'));
      this.known = true;
    } catch (thrown) {
      // No session: `ended` has been called. No contact: the banner says so, and this is asked again when it is back.
      if (asFailure(thrown).status === 0) contact.lost();
      else this.known = true;
    }
  }

  async login(user: string, password: string): Promise<void> {
    this.me = await take(client.POST('/api/v1/login', { body: { user, password } }));
    contact.logins++;
    this.known = true;
    router.go(safeReturn(router.query.to), { replace: true });
  }

  async logout(): Promise<void> {
    await take(client.POST('/api/v1/logout'));
    this.me = null;
    router.go(href('login'));
  }

  /** The role in a namespace; without one, anywhere. */
  may(needed: Role, namespace?: string): boolean {
    const grants = this.me?.grants;
    if (!grants) return false;
    return namespace === undefined ? allowsSomewhere(grants, needed) : allows(grants, needed, namespace);
  }

  mayEverywhere(needed: Role): boolean {
    return this.me !== null && allowsEverywhere(this.me.grants, needed);
  }

  ended(): void {
    this.known = true;
    const found = router.found;
    if (found && routeOf(found.name).open) {
      this.me = null;
      return;
    }
    const was = this.me !== null;
    this.me = null;
    const to = location.hash.length > 2 ? location.hash : undefined;
    router.go(href('login', {}, { to, ended: was ? '1' : undefined }), { replace: true });
  }
}

/** Only a place in this console: whatever else stands in the address is not followed. */
export function safeReturn(to: string | undefined): string {
  return to?.startsWith('#/') && !to.startsWith('#/login') ? to : href('overview');
}

export const session = new Session();
