// What grants allow. The server decides; this only keeps the console from offering what it would refuse.

export type Role = 'viewer' | 'operator' | 'editor' | 'admin';
export type Grants = Readonly<Record<string, string>>;

export const ROLES: readonly Role[] = ['viewer', 'operator', 'editor', 'admin'];
const ORDER: readonly string[] = ROLES;
const EVERYWHERE = '*';

function reaches(held: string | undefined, needed: Role): boolean {
  return held !== undefined && ORDER.indexOf(held) >= ORDER.indexOf(needed);
}

export function allows(grants: Grants, needed: Role, namespace: string): boolean {
  return reaches(grants[namespace], needed) || reaches(grants[EVERYWHERE], needed);
}

export function allowsEverywhere(grants: Grants, needed: Role): boolean {
  return reaches(grants[EVERYWHERE], needed);
}

export function allowsSomewhere(grants: Grants, needed: Role): boolean {
  return Object.values(grants).some((held) => reaches(held, needed));
}
