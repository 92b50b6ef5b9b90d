//! One comparison of the engine with the oracle's list of all fires, and the count of comparisons by operator.

use std::collections::{BTreeMap, BTreeSet};

use belfry_core::schedule::{DstRule, GapRule, OverlapRule, Schedule, ScheduleSpec, Window};
use jiff::Timestamp;

use super::expression::Expression;
use super::generate::operators;
use super::random::Random;
use super::zones::ZoneCase;

const STARTS: usize = 20;
const WALK_FIRES_MAX: usize = 1_500;

#[derive(Default)]
pub struct Counts {
    pub cases: u64,
    pub walked: u64,
    pub refused: u64,
    pub windows: u64,
    pub windows_across_change: u64,
    pub zones: BTreeSet<String>,
    pub operators: BTreeMap<&'static str, u64>,
}

impl Counts {
    pub fn add(&mut self, operators: &[&'static str], cases: u64) {
        self.cases += cases;
        for operator in operators {
            *self.operators.entry(operator).or_default() += cases;
        }
    }

    pub fn merge(&mut self, other: Counts) {
        self.cases += other.cases;
        self.walked += other.walked;
        self.refused += other.refused;
        self.windows += other.windows;
        self.windows_across_change += other.windows_across_change;
        self.zones.extend(other.zones);
        for (operator, cases) in other.operators {
            *self.operators.entry(operator).or_default() += cases;
        }
    }
}

#[allow(clippy::too_many_arguments, reason = "one comparison, all of its facts")]
pub fn check(
    zone: &ZoneCase,
    expressions: &[Expression],
    dst: DstRule,
    window: Window,
    fires: &[i64],
    range: std::ops::Range<i64>,
    random: &mut Random,
    counts: &mut Counts,
) {
    let texts: Vec<String> = expressions.iter().map(Expression::render).collect();
    let context = || format!("{texts:?} in {} with {dst:?} {window:?} seed {}", zone.name, expressions[0].seed);
    let spec = ScheduleSpec {
        expressions: &texts,
        timezone: &zone.name,
        dst,
        window,
        seed: expressions[0].seed,
        anchor: Timestamp::UNIX_EPOCH,
    };
    let schedule = match Schedule::compile(&spec) {
        Ok(schedule) => schedule,
        Err(refused) => {
            // One of several may be impossible while another fires.
            assert!(refused.message.contains("it never fires"), "{refused}");
            assert!(fires.is_empty() || expressions.len() > 1, "{} but {fires:?}: {}", refused, context());
            counts.refused += 1;
            return;
        }
    };
    let mut names: Vec<&'static str> = expressions.iter().flat_map(operators).collect();
    names.extend((expressions.len() > 1).then_some("several"));
    names.extend((!window.is_open()).then_some("window"));
    names.push(if dst.gap == GapRule::After { "gap after" } else { "gap skip" });
    names.push(match dst.overlap {
        OverlapRule::First => "overlap first",
        OverlapRule::Last => "overlap last",
        OverlapRule::Both => "overlap both",
    });
    names.sort_unstable();
    names.dedup();

    for nth in 0..STARTS {
        let near_fire = nth % 2 == 0 && !fires.is_empty();
        let start = if near_fire {
            random.pick(fires) + random.within(-1, 1)
        } else {
            random.within(range.start, range.end - 1)
        };
        let start = start.clamp(range.start, range.end - 1);
        let half_second = random.one_in(4);
        let t = Timestamp::new(start, if half_second && start > 0 { 500_000_000 } else { 0 }).expect("in range");
        let expected = fires.get(fires.partition_point(|fire| *fire <= start)).copied();
        let found = schedule.next_after(t).map(Timestamp::as_second);
        let agrees = if expected.is_some() { found == expected } else { found.is_none_or(|fire| fire >= range.end) };
        assert!(agrees, "next after {t}: {found:?}, brute force {expected:?}: {}", context());

        let before = fires.partition_point(|fire| *fire < start + i64::from(t.subsec_nanosecond() > 0));
        let expected = before.checked_sub(1).map(|index| fires[index]);
        let found = schedule.prev_before(t).map(Timestamp::as_second);
        let agrees = if expected.is_some() { found == expected } else { found.is_none_or(|fire| fire < range.start) };
        assert!(agrees, "prev before {t}: {found:?}, brute force {expected:?}: {}", context());
    }
    counts.add(&names, 2 * STARTS as u64);

    let mut t = Timestamp::from_second(range.start - 1).expect("in range");
    for fire in fires.iter().take(WALK_FIRES_MAX) {
        t = schedule.next_after(t).unwrap_or_else(|| panic!("no fire after {t}, brute force {fire}: {}", context()));
        assert_eq!(t.as_second(), *fire, "{}", context());
        counts.walked += 1;
    }
}
