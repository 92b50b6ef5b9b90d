// The address of every state of the console.
import { describe, expect, it } from 'vitest';

import { fillPath, formatPlace, matchPath, parsePlace } from '../../src/place';
import { findRoute, href } from '../../src/routes';

describe('a place', () => {
  it('is read from the address', () => {
    expect(parsePlace('#/jobs?q=back%20up&state=failing')).toEqual({ path: '/jobs', query: { q: 'back up', state: 'failing' } });
  });
  it('without anything is the front page', () => {
    expect(parsePlace('')).toEqual({ path: '/', query: {} });
  });
  it('leaves out what is empty', () => {
    expect(formatPlace('/jobs', { q: '', label: 'team=db', state: undefined })).toBe('#/jobs?label=team%3Ddb');
  });
  it('survives being written and read', () => {
    const query = { q: 'a&b=c #?', state: 'failed,lost', job: 'shop/nightly' };
    expect(parsePlace(formatPlace('/runs', query))).toEqual({ path: '/runs', query });
  });
});

describe('a route', () => {
  it('gives its parameters decoded', () => {
    expect(matchPath('/jobs/:ns/:name', '/jobs/a%20b/c.d')).toEqual({ ns: 'a b', name: 'c.d' });
  });
  it('does not match with a part missing', () => {
    expect(matchPath('/jobs/:ns/:name', '/jobs/a/')).toBeNull();
  });
  it('is found with and without a slash at the end', () => {
    expect(findRoute('/jobs/')?.name).toBe('jobs');
    expect(findRoute('/')?.name).toBe('overview');
  });
  it('leads back to itself', () => {
    expect(fillPath('/jobs/:ns/:name', { ns: 'a/b', name: 'c' })).toBe('/jobs/a%2Fb/c');
    expect(findRoute(parsePlace(href('job', { ns: 'a/b', name: 'c' })).path)).toEqual({ name: 'job', params: { ns: 'a/b', name: 'c' } });
  });
  it('that nobody knows is not found', () => {
    expect(findRoute('/tasks')).toBeNull();
  });
});
