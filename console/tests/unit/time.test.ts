// Instants and durations as text.
import { describe, expect, it } from 'vitest';

import { bytes, counted, duration, exact, hourStart, short, toMinute } from '../../src/time';

const noon = Date.parse('2026-11-18T12:00:00Z');

describe('a duration', () => {
  it.each([
    [0, '0ms'],
    [850, '850ms'],
    [4_260, '4.2s'],
    [59_999, '59s'],
    [189_000, '3m 09s'],
    [7_500_000, '2h 05m'],
    [273_600_000, '3d 4h'],
    [-1_500, '−1.5s'],
  ])('of %i ms is %s', (ms, text) => expect(duration(ms)).toBe(text));
  it('that counts does so in whole seconds', () => {
    expect([counted(300), counted(4_800), counted(61_000)]).toEqual(['0s', '4s', '1m 01s']);
  });
});

describe('an instant', () => {
  it('is shown in the zone that is asked for', () => {
    expect(exact(noon, 'Asia/Shanghai')).toBe('2026-11-18 20:00:00');
  });
  it('is as short as it is true', () => {
    expect(short(noon - 3_600_000, noon, 'UTC')).toBe('11:00:00');
    expect(short(noon - 86_400_000, noon, 'UTC')).toBe('11-17 12:00');
    expect(short(noon - 365 * 86_400_000, noon, 'UTC')).toBe('2025-11-18 12:00');
  });
  it('to the minute keeps its time, also on the full hour of another day', () => {
    expect([toMinute(noon, noon, 'UTC'), toMinute(noon + 86_400_000, noon, 'UTC')]).toEqual(['12:00', '11-19 12:00']);
  });
  it('begins its hour on the clock of the viewer, also in zones of half hours', () => {
    const zone = process.env.TZ;
    for (const [there, minute] of [['Asia/Kolkata', 30], ['Asia/Kathmandu', 15], ['Europe/Berlin', 0]] as const) {
      process.env.TZ = there;
      expect(new Date(hourStart(noon + 40 * 60_000)).getUTCMinutes()).toBe(minute);
      expect(new Date(hourStart(noon + 40 * 60_000)).getMinutes()).toBe(0);
    }
    process.env.TZ = zone;
  });
});

it('bytes have units of 1024', () => {
  expect([bytes(12), bytes(1536), bytes(300 * 1024 * 1024)]).toEqual(['12 B', '1.5 KiB', '300 MiB']);
});
