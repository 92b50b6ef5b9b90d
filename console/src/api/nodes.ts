// The names of nodes that inputs suggest, and what the server takes a name for.
import { session } from '../session.svelte';
import { client, take, type Schemas } from './client';

/** A name is that of the node that has it now, which may have had another one when a run was on it. What is no name of a node may be an id. Unknown to those who may not see nodes. */
export async function nodeId(wanted: string, signal: AbortSignal): Promise<string | undefined> {
  if (!session.mayEverywhere('viewer')) return undefined;
  return (await take(client.GET('/api/v1/nodes/{id}', { params: { path: { id: wanted } }, signal }))).id;
}

/** Each once: two nodes may have one name. None for those who may not see nodes. */
export async function nodeNames(fits: (node: Schemas['NodeAnswer']) => boolean = () => true): Promise<string[]> {
  if (!session.mayEverywhere('viewer')) return [];
  const { items } = await take(client.GET('/api/v1/nodes'));
  return [...new Set(items.filter(fits).map((node) => node.name))];
}
