//! A cron expression on the clock of a zone: local matches become UTC seconds, gaps and overlaps follow the DST rule.
//!
//! The walk goes from offset span to offset span, and jumps over all spans that cannot hold the next local match.

use super::cron::{Cron, NEVER, NEVER_BEFORE};
use super::rules::{DstRule, GapRule, OverlapRule};
use super::zone::{SpanView, Zone};

/// The first fire at or after a UTC second.
pub(super) fn next_fire(cron: &Cron, zone: &Zone, dst: DstRule, from: i64) -> Option<i64> {
    let mut at = from;
    let mut index = zone.span_at(at);
    let mut scan = Scan::new();
    loop {
        let span = zone.span(index);
        if at == span.start
            && let Some(gap) = moved_gap(cron, dst, &span)
            && scan.next(cron, gap.start) < gap.end
        {
            return Some(at);
        }
        let local = local_times(cron, dst, &span);
        let low = local.start.max(at + span.offset);
        let found = scan.next(cron, low);
        if found < local.end {
            return Some(found - span.offset);
        }
        if span.is_last() {
            return None;
        }
        if span.end + span.offset_after < low {
            // The clock goes back to before where this search began: the second pass may hold matches that it never saw.
            (at, index) = (span.end, index + 1);
        } else if found == NEVER {
            return None;
        } else {
            at = span.end.max(found - zone.offset_max);
            index = if at == span.end { index + 1 } else { zone.span_at(at) };
        }
    }
}

/// The last fire at or before a UTC second.
pub(super) fn prev_fire(cron: &Cron, zone: &Zone, dst: DstRule, from: i64) -> Option<i64> {
    let mut at = from;
    let mut index = zone.span_at(at);
    loop {
        let span = zone.span(index);
        let local = local_times(cron, dst, &span);
        let high = (local.end - 1).min(at + span.offset);
        let found = cron.prev_local(high);
        if found >= local.start {
            return Some(found - span.offset);
        }
        if let Some(gap) = moved_gap(cron, dst, &span)
            && cron.prev_local(gap.end - 1) >= gap.start
        {
            return Some(span.start);
        }
        if span.is_first() {
            return None;
        }
        if span.start + span.offset_before > high {
            (at, index) = (span.start - 1, index - 1);
        } else if found == NEVER_BEFORE {
            return None;
        } else {
            at = (span.start - 1).min(found - zone.offset_min);
            index = if at == span.start - 1 { index - 1 } else { zone.span_at(at) };
        }
    }
}

/// The gap before a span, if the expression's matches in it move to its end.
pub(super) fn moved_gap(cron: &Cron, dst: DstRule, span: &SpanView) -> Option<std::ops::Range<i64>> {
    match dst.gap {
        GapRule::After if cron.fixed_time => span.gap_before(),
        GapRule::After | GapRule::Skip => None,
    }
}

/// The local times of a span that count for this expression: all, or without the pass of an overlap that the rule leaves out.
fn local_times(cron: &Cron, dst: DstRule, span: &SpanView) -> std::ops::Range<i64> {
    let (start, end) = (span.start + span.offset, span.end + span.offset);
    if !cron.fixed_time {
        return start..end;
    }
    match dst.overlap {
        OverlapRule::First => start.max(span.start + span.offset_before)..end,
        OverlapRule::Last => start..end.min(span.end + span.offset_after),
        OverlapRule::Both => start..end,
    }
}

/// Remembers the last search: from `from` up to `found` there is no other match.
struct Scan {
    from: i64,
    found: i64,
}

impl Scan {
    fn new() -> Self {
        Self { from: NEVER, found: NEVER_BEFORE }
    }

    fn next(&mut self, cron: &Cron, from: i64) -> i64 {
        if from < self.from || from > self.found {
            *self = Self { from, found: cron.next_local(from) };
        }
        self.found
    }
}
