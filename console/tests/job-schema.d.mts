export interface Leaf {
  path: string;
  kind: string;
  options?: string[];
  usual?: unknown;
  required: boolean;
}
export function leavesOf(schema: unknown, path?: string): Leaf[];
