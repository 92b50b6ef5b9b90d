// Schedules in words, in both languages.
import { describe, expect, it } from 'vitest';

import { en } from '../../src/i18n/en';
import { zh } from '../../src/i18n/zh';
import { expressionWords, scheduleWords } from '../../src/schedule/words';

describe('a schedule in words', () => {
  it.each([
    ['@every 90s', 'every 90s', '每隔 90s'],
    ['@after 5m', '5m after the last run has ended', '上次运行结束后 5m'],
    ['@boot', 'at each boot of the machine', '机器每次启动时'],
    ['@daily', '00:00 every day', '每天 00:00'],
    ['* * * * *', 'every minute', '每分钟'],
    ['*/5 * * * *', 'every 5 minutes', '每 5 分钟'],
    ['*/10 * * * * *', 'every 10 seconds', '每 10 秒'],
    ['0 4 * * *', '04:00 every day', '每天 04:00'],
    ['30 4,16 * * *', '04:30, 16:30 every day', '每天 04:30、16:30'],
    ['15 3 * * 1-5', '03:15 Monday to Friday', '周一至周五 03:15'],
    ['15 3 * * mon,wed', '03:15 on Monday, Wednesday', '周一、周三 03:15'],
    ['0 0 1 * *', '00:00 on day 1 of the month', '每月 1 日 00:00'],
    ['0 6 L * *', '06:00 on the last day of the month', '每月最后一天 06:00'],
    ['0 9 * * MON#2', '09:00 on Monday number 2 of the month', '每月第 2 个周一 09:00'],
    ['0 9 ? * 5L', '09:00 on the last Friday of the month', '每月最后一个周五 09:00'],
    ['5,35 * * * *', 'every hour at :05, :35', '每小时的 :05、:35'],
    ['0 */6 * * *', 'every 6 hours at :00', '每 6 小时的 :00'],
    ['*/15 9-17 * * 1-5', 'every 15 minutes from 09:00 to 17:59 Monday to Friday', '周一至周五 09:00 至 17:59 每 15 分钟'],
    ['H H * * *', 'at a time of its own every day', '每天 固定的专属时刻'],
    ['0 0 0 1 1 ? 2027', '00:00 on day 1 of the month in January in 2027', '2027 年 1 月 每月 1 日 00:00'],
  ])('%s', (expression, english, chinese) => {
    expect(expressionWords(expression, en.schedule)).toBe(english);
    expect(expressionWords(expression, zh.schedule)).toBe(chinese);
  });
  it('stays as it is written where words would be a guess', () => {
    expect(expressionWords('1-59/7 3-23/4 * * *', en.schedule)).toBe('1-59/7 3-23/4 * * *');
    expect(expressionWords('nonsense', en.schedule)).toBe('nonsense');
  });
  it('of several expressions names each, of none says so', () => {
    expect(scheduleWords(['0 4 * * *', '@every 1h'], en.schedule)).toBe('04:00 every day; every 1h');
    expect(scheduleWords(undefined, en.schedule)).toBe('only by hand');
  });
});
