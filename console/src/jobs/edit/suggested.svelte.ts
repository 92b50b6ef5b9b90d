// Names of nodes and scripts that the form suggests. Only suggestions: the fields take any name.
import { client, take, type Schemas } from '../../api/client';
import { nodeNames } from '../../api/nodes';

export class Suggested {
  nodes: readonly string[] = $state.raw([]);
  private stored: readonly Schemas['ScriptView'][] = $state.raw([]);

  constructor() {
    nodeNames()
      .then((names) => (this.nodes = names))
      .catch(() => {});
    take(client.GET('/api/v1/scripts', { params: { query: { limit: 100 } } }))
      .then(({ items }) => (this.stored = items))
      .catch(() => {});
  }

  scripts(namespace: unknown): readonly string[] {
    return this.stored.filter((script) => script.namespace === (namespace ?? 'default')).map((script) => script.name);
  }
}
