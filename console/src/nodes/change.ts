// What can be done with a node, with a question before what takes it out of work.
import { client, take, type Schemas } from '../api/client';
import { t } from '../i18n/messages.svelte';
import { confirm } from '../layout/confirm.svelte';
import { toasts } from '../layout/toasts.svelte';
import type { Node } from './facts';

export function patchNode(id: string, body: Partial<Schemas['NodePatch']>): Promise<Node> {
  return take(client.PATCH('/api/v1/nodes/{id}', { params: { path: { id } }, body: body as Schemas['NodePatch'] }));
}

/** True when it was done. */
export async function setDraining(node: Node, draining: boolean): Promise<boolean> {
  if (draining && !(await confirm.ask({ title: t().nodes.drainAsk(node.name), text: t().nodes.drainText, action: t().nodes.drain }))) return false;
  return attempt(() => patchNode(node.id, { draining }), t().nodes.changed(node.name));
}

export async function setExcluded(node: Node, excluded: boolean): Promise<boolean> {
  if (excluded && !(await confirm.ask({ title: t().nodes.excludeAsk(node.name), text: t().nodes.excludeText, action: t().nodes.exclude, danger: true }))) return false;
  return attempt(() => patchNode(node.id, { excluded }), t().nodes.changed(node.name));
}

export async function removeNode(node: Node): Promise<boolean> {
  const text = node.connected ? t().nodes.removeConnected : t().nodes.removeText;
  if (!(await confirm.ask({ title: t().nodes.removeAsk(node.name), text, action: t().act.remove, danger: true, typed: node.name }))) return false;
  const params = { path: { id: node.id }, query: node.connected ? { force: true } : {} };
  return attempt(() => take(client.DELETE('/api/v1/nodes/{id}', { params })), t().nodes.removed(node.name));
}

async function attempt(act: () => Promise<unknown>, done: string): Promise<boolean> {
  try {
    await act();
    toasts.done(done);
    return true;
  } catch (thrown) {
    toasts.failed(thrown);
    return false;
  }
}
