// The change of a user that pages share.
import { client, take, type Schemas } from '../api/client';

/** What is left out stays as it is. */
export function patchUser(name: string, body: Partial<Schemas['UserPatch']>): Promise<unknown> {
  return take(client.PATCH('/api/v1/users/{name}', { params: { path: { name } }, body: body as Schemas['UserPatch'] }));
}
