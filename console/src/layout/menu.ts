// What the menu holds for the signed-in user: those pages that the server would show them.
import { t } from '../i18n/messages.svelte';
import { href, routeNames, routeOf, type RouteName } from '../routes';
import { session } from '../session.svelte';

export interface MenuEntry {
  name: RouteName;
  text: string;
  href: string;
  /** The first part of its path, which its sub-pages share. */
  first: string;
}

export function menu(): MenuEntry[] {
  return routeNames.flatMap((name) => {
    const { menu: shown, path } = routeOf(name);
    if (!shown) return [];
    const allowed = shown.everywhere ? session.mayEverywhere(shown.needs) : session.may(shown.needs);
    return allowed ? [{ name, text: t().menu[shown.label] as string, href: href(name), first: path.split('/')[1] ?? '' }] : [];
  });
}
