//! Flags of `next` and `explain`.

use belfry_core::schedule::{GapRule, OverlapRule};
use clap::Args;

use super::{JobName, RunRef, When, moment};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  belfry next '0 4 * * *'
  belfry next '30 2 * * *' --tz Europe/Berlin --from 2026-03-28 -n 3
  belfry next '@every 90s' '0 0 L * *' --json")]
pub struct NextArgs {
    /// Schedules, each in quotes: 5, 6 (seconds first) or 7 (year last) fields, or @daily, @every 90s, @at TIME
    #[arg(value_name = "EXPR", required = true)]
    pub expressions: Vec<String>,
    /// Zone of the schedule, as Europe/Berlin [default: this machine's zone]
    #[arg(long, value_name = "ZONE")]
    pub tz: Option<String>,
    /// Fires after this moment
    #[arg(long, value_name = "TIME", value_parser = moment, default_value = "now", allow_hyphen_values = true)]
    pub from: When,
    /// How many fires
    #[arg(short = 'n', long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub count: u32,
    /// What becomes of a time of day that the clock skips
    #[arg(long, value_name = "RULE", default_value = "after")]
    pub dst_gap: DstGap,
    /// Which pass counts when a time of day comes twice
    #[arg(long, value_name = "RULE", default_value = "first")]
    pub dst_overlap: DstOverlap,
    /// Job whose name decides what H stands for
    #[arg(long, value_name = "NAME", default_value = "next")]
    pub job: JobName,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  belfry explain backup                          # its last run, else its next fire
  belfry explain backup --at 2026-11-16T04:00
  belfry explain db/backup --at +1d --json
  belfry explain 01M7HBXAW83TWS4MM24NYV3GDN      # one run, also of a job that has another name now")]
pub struct ExplainArgs {
    /// Job, as name or namespace/name, or a run's id
    #[arg(value_name = "JOB|RUN")]
    pub subject: RunRef,
    /// Instant to explain, past or to come [default: that of the job's last run, else of its next fire]
    #[arg(long, value_name = "TIME", value_parser = moment, allow_hyphen_values = true)]
    pub at: Option<When>,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub enum DstGap {
    After,
    Skip,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub enum DstOverlap {
    First,
    Last,
    Both,
}

impl From<DstGap> for GapRule {
    fn from(rule: DstGap) -> Self {
        match rule {
            DstGap::After => GapRule::After,
            DstGap::Skip => GapRule::Skip,
        }
    }
}

impl From<DstOverlap> for OverlapRule {
    fn from(rule: DstOverlap) -> Self {
        match rule {
            DstOverlap::First => OverlapRule::First,
            DstOverlap::Last => OverlapRule::Last,
            DstOverlap::Both => OverlapRule::Both,
        }
    }
}
