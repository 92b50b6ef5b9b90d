// What nobody can confirm at the moment says since when.
import { contact } from './api/contact.svelte';
import { clock } from './clock.svelte';
import { t } from './i18n/messages.svelte';
import { short } from './time';

/** The text, and while the server is away the instant that it is true of. */
export function asOf(text: string): string {
  return contact.lostAt === null ? text : `${text}\u00a0${t().banner.asOf(short(contact.lostAt, clock.now))}`;
}
