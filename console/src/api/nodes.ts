// The names of nodes that inputs suggest.
import { session } from '../session.svelte';
import { client, take, type Schemas } from './client';

/** Each once: two nodes may have one name. None for those who may not see nodes. */
export async function nodeNames(fits: (node: Schemas['NodeAnswer']) => boolean = () => true): Promise<string[]> {
  if (!session.mayEverywhere('viewer')) return [];
  const { items } = await take(client.GET('/api/v1/nodes'));
  return [...new Set(items.filter(fits).map((node) => node.name))];
}
