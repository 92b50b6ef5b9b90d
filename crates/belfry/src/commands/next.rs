//! `belfry next`: the fires of schedules, computed here by the same code as on the server.

use belfry_core::Timestamp;
use belfry_core::id::name_seed;
use belfry_core::schedule::{ClockNote, DstRule, Schedule, ScheduleSpec, Window};

use super::Context;
use crate::cli::NextArgs;
use crate::exit::{Exit, UsageError};
use crate::print::{Tone, Word, Zone, relative, tell};

pub fn run(args: &NextArgs, context: &Context) -> anyhow::Result<Exit> {
    let usage = |message: String| anyhow::Error::new(UsageError(message));
    let zone = match &args.tz {
        Some(name) => Zone::named(name).map_err(|e| usage(e.to_string()))?,
        None => context.print.zone.clone(),
    };
    let from = args.from.at(context.print.now, &zone.tz).map_err(|message| usage(format!("--from: {message}")))?;
    let schedule = Schedule::compile(&ScheduleSpec {
        expressions: &args.expressions,
        timezone: &zone.name,
        dst: DstRule { gap: args.dst_gap.into(), overlap: args.dst_overlap.into() },
        window: Window::default(),
        seed: name_seed(args.job.namespace(), &args.job.name),
        anchor: from,
    })
    .map_err(|e| usage(format!("{e}{}", unquoted_hint(&args.expressions))))?;
    let fires: Vec<Timestamp> = std::iter::successors(schedule.next_after(from), |last| schedule.next_after(*last))
        .take(args.count as usize)
        .collect();

    if context.print.json {
        context.print.json(&serde_json::to_value(&fires)?)?;
    } else {
        let rows = fires.iter().map(|fire| row(*fire, &schedule, &zone, context)).collect();
        context.print.table(&["fires at", "day", "from now", "note"], rows)?;
        context.print.say(&format!("zone {}", zone.name));
    }
    if let Some(delay) = schedule.delay_after_end() {
        tell(&format!("@after: also {} after the end of each run", belfry_core::units::Span::from(delay)));
    }
    if schedule.at_boot() {
        tell("@boot: also when a node starts");
    }
    let depends_on_runs = schedule.delay_after_end().is_some() || schedule.at_boot();
    if fires.is_empty() && !depends_on_runs {
        tell(&format!("it never fires after {from}"));
        return Ok(Exit::Failed);
    }
    Ok(Exit::Done)
}

fn row(fire: Timestamp, schedule: &Schedule, zone: &Zone, context: &Context) -> Vec<Word> {
    let day = fire.to_zoned(zone.tz.clone()).strftime("%a").to_string();
    let note = schedule.note_for(fire).map_or_else(String::new, |note| match note {
        ClockNote::MovedFromGap { local } => format!("{} is skipped by the clock", local.strftime("%H:%M:%S")),
        ClockNote::FirstPass => "first of two passes".to_owned(),
        ClockNote::SecondPass => "second of two passes".to_owned(),
    });
    vec![
        zone.rfc3339(fire).into(),
        day.into(),
        Word::toned(relative(fire, context.print.now), Tone::Faint),
        note.into(),
    ]
}

/// `belfry next 0 4 1 1 1` without quotes arrives as five schedules of one field.
fn unquoted_hint(expressions: &[String]) -> String {
    let single_fields = expressions.iter().all(|text| !text.contains(char::is_whitespace) && !text.starts_with('@'));
    if expressions.len() > 1 && single_fields {
        return format!("; put the schedule in quotes: belfry next '{}'", expressions.join(" "));
    }
    String::new()
}
