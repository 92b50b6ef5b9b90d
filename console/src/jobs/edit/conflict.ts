// The version that somebody else saved while one was editing.
import { client, take } from '../../api/client';
import type { Doc } from './document';

export interface Theirs {
  document: Doc;
  revision: number;
  author: string;
}

export async function readTheirs(ns: string, name: string): Promise<Theirs> {
  const params = { path: { ns, name }, query: { limit: 1 } };
  const { items } = await take(client.GET('/api/v1/jobs/{ns}/{name}/revisions', { params }));
  const [newest] = items;
  if (!newest) throw new Error(`${ns}/${name} has no revision`);
  return { document: newest.document as Doc, revision: newest.revision, author: newest.author };
}
