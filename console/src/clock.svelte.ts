// What time it is for everything that counts up or down: one tick a second, on the server's clock, standing still while it is away.
import { contact } from './api/contact.svelte';

class Clock {
  private tick = $state(Date.now());

  constructor() {
    setInterval(() => {
      if (!document.hidden) this.tick = Date.now();
    }, 1_000);
    document.addEventListener('visibilitychange', () => (this.tick = Date.now()));
  }

  /** Also while the server is away. */
  get now(): number {
    return this.tick + contact.clockOffset;
  }

  /** The instant that what is shown is true of: a run is not said to go on while nobody knows. */
  get known(): number {
    return contact.lostAt === null ? this.now : contact.lostAt + contact.clockOffset;
  }
}

export const clock = new Clock();
