//! An explanation in plain sentences, from facts alone.

use belfry_control::{FiredBy, Outlook};
use belfry_core::due::{Due, ON_TIME_MS};
use belfry_core::explain::Standing;
use belfry_core::job::Overlap;
use belfry_core::place::{By, Decision};
use belfry_core::run::{Run, RunState, Trigger};
use belfry_core::units::Span;

use super::{Facts, Held, Owner, local_time, note, zone_of};
use crate::moment::Moment;

/// The same nodes make the same choice: nothing goes round, and nothing is counted.
pub(super) fn is_certain(decision: &Decision) -> bool {
    match decision.by {
        By::Random | By::Hash | By::LastNode => true,
        By::Weighted | By::Anew | By::Least => decision.fit == 1,
    }
}

pub(super) fn sentences(facts: &Facts) -> Vec<String> {
    let mut said = Vec::new();
    let Some(held) = &facts.held else {
        said.push(no_job(facts));
        said.extend(facts.runs.iter().flat_map(about_run));
        return said;
    };
    said.push(which_definition(facts, held));
    said.extend(about_instant(facts, held));
    for run in &facts.runs {
        said.extend(about_run(run));
    }
    if facts.scheduled().is_none() && held.instant.standing == Standing::Due {
        said.extend(about_absence(facts, held));
    }
    said
}

fn no_job(facts: &Facts) -> String {
    let (name, at) = (&facts.name, Moment(facts.at));
    let life = match facts.life {
        Some(life) => life,
        None if facts.is_wrapped() => {
            return format!("{name} is no job of Belfry's: a host's own cron ran it at {at}, through dcron.");
        }
        None => return format!("What {name} was at {at} belongs to a namespace that you may not see."),
    };
    match life.removed_at {
        Some(removed) if removed <= facts.at => {
            format!("There was no job {name} at {at}: it was removed at {}.", Moment(removed))
        }
        _ => format!("There was no job {name} at {at}: it was created at {}.", Moment(life.created_at)),
    }
}

fn which_definition(facts: &Facts, held: &Held) -> String {
    let revision = &held.revision;
    let (held_word, since) = (if facts.at > facts.now { "holds now" } else { "held then" }, Moment(revision.at));
    let replaced = held
        .replaced_at
        .map_or(String::new(), |at| format!("; revision {} replaced it at {}", revision.revision + 1, Moment(at)));
    format!(
        "Revision {} of {} {held_word}, saved by {} at {since}{replaced}.",
        revision.revision, facts.name, revision.author
    )
}

fn about_instant(facts: &Facts, held: &Held) -> Vec<String> {
    let document = &held.revision.document;
    let zone = zone_of(document);
    let at = format!("{} ({} in {zone})", Moment(facts.at), local_time(zone, facts.at));
    let quoted =
        |expressions: &[String]| expressions.iter().map(|e| format!("`{e}`")).collect::<Vec<_>>().join(" and ");
    let fire = || format!("{at} is a fire of {}", quoted(&held.instant.expressions));
    let mut said = vec![match held.instant.standing {
        Standing::Due => fire() + ".",
        Standing::Paused => {
            fire() + ", but the job was paused: nothing was due. `belfry job resume` lets it fire again."
        }
        Standing::NotCountedYet(from) => format!(
            "{}, but its schedule counts only from {}, when it was saved or resumed: nothing was due.",
            fire(),
            Moment(from)
        ),
        Standing::NotAFire | Standing::NoSchedule if document.service_rule().is_some() => {
            format!("{at}: a service always runs; each of its runs is planned when the one before it has ended.")
        }
        Standing::NotAFire | Standing::NoSchedule if facts.scheduled().is_some() => {
            format!("{at} was planned by `@after`: so long after the end of the run before.")
        }
        Standing::NotAFire => {
            let shown = |at: Option<belfry_core::Timestamp>| at.map_or("none".to_owned(), |at| Moment(at).to_string());
            format!(
                "{at} is not a fire of {}: the one before is {}, the next is {}.",
                quoted(&document.schedule.0),
                shown(held.instant.previous),
                shown(held.instant.next)
            )
        }
        Standing::NoSchedule if document.schedule.is_empty() => {
            format!("{at} is not a fire: the job has no schedule and runs by hand only.")
        }
        Standing::NoSchedule => {
            format!("{at} is not a fire: {} follows the runs before it and no clock.", quoted(&document.schedule.0))
        }
    }];
    if let Some(clock_note) = held.instant.note {
        said.push(format!("Clocks change that day: {}.", note(clock_note).message));
    }
    if held.instant.start_at > facts.at && held.instant.standing == Standing::Due {
        said.push(format!("Its jitter moves the start to {}.", Moment(held.instant.start_at)));
    }
    said
}

fn about_run(run: &Run) -> Vec<String> {
    let reason = run.reason.as_ref().map_or(String::new(), |reason| format!(": {reason}"));
    let by = match &run.trigger {
        Trigger::Schedule => String::new(),
        Trigger::Manual { by, .. } => format!(", started by hand by {by}"),
        Trigger::Rerun { by, of, .. } => format!(", a rerun of {of} by {by}"),
        Trigger::Wrapped { instance } => format!(", the instance {instance} of a wrapped command,"),
    };
    let state = if run.state == RunState::Claimed && run.reason.is_some() { "waiting" } else { run.state.as_str() };
    let mut said = vec![format!("Run {}{by} is {state}{reason}.", run.id)];
    said.push(steps(run));
    let late_ms = run.claimed_at.as_millisecond() - run.planned.as_millisecond();
    if run.trigger == Trigger::Schedule && late_ms > ON_TIME_MS && run.state != RunState::Skipped {
        said.push("It was missed at its instant; the job's misfire rule let it run later.".to_owned());
    }
    match (&run.placement, &run.node_name) {
        (Some(decision), Some(node)) if decision.fit > 0 => {
            said.push(format!("It went to {node}: {}.", chosen_by(decision)));
            said.extend(why_not(decision));
        }
        (Some(decision), _) => said.push(format!("When it was last tried, {}.", decision.why_nowhere())),
        (None, Some(host)) if matches!(run.trigger, Trigger::Wrapped { .. }) => {
            said.push(format!("{host} was the last host that claimed it."));
        }
        (None, Some(node)) if run.marks.local => said.push(by_itself(run, node)),
        (None, Some(node)) => {
            said.push(format!("It went to {node}; why is not known any more, because another server took it over."));
        }
        (None, None) => {}
    }
    said
}

fn by_itself(run: &Run, node: &str) -> String {
    let contact = if run.marks.cut_off { ", without contact to the servers" } else { "" };
    let twice = if run.marks.may_have_run_twice {
        "; the job's home had moved by then, so its new home may have run the same fire"
    } else {
        ""
    };
    format!("{node} fired it by itself, from its own copy of the job{contact}{twice}.")
}

fn steps(run: &Run) -> String {
    let between =
        |from: belfry_core::Timestamp, to: belfry_core::Timestamp| to.as_millisecond() - from.as_millisecond();
    let claimed = match between(run.planned, run.claimed_at) {
        ms @ 0.. => format!("Claimed {} after its instant", length(ms)),
        ms => format!("Claimed {} before its instant", length(-ms)),
    };
    let mut steps = vec![claimed];
    steps.extend(run.dispatched_at.map(|at| format!("dispatched {} later", length(between(run.claimed_at, at)))));
    steps.extend(run.started_at.map(|at| match between(run.planned, at) {
        ms @ 0.. => format!("started {} after its instant", length(ms)),
        ms => format!("started {} before its instant by the node's clock", length(-ms)),
    }));
    steps.extend(run.ended_at.map(|at| match run.started_at {
        Some(started) => format!("ended {} after its start", length(between(started, at))),
        None => format!("ended {} after its instant without a start", length(between(run.planned, at))),
    }));
    steps.join(", ") + "."
}

fn length(ms: i64) -> String {
    if ms == 0 { "0ms".to_owned() } else { Span::from(std::time::Duration::from_millis(ms.unsigned_abs())).to_string() }
}

fn chosen_by(decision: &Decision) -> String {
    let others = (decision.fit as usize).saturating_sub(1);
    let unnamed = others - decision.others.len().min(others);
    match (others, unnamed) {
        (0, _) => "it was the only node that could take it".to_owned(),
        (_, 0) => format!("{}; {} could take it too", decision.by.in_words(), decision.others.join(", ")),
        _ => {
            format!("{}; {} and {unnamed} more could take it too", decision.by.in_words(), decision.others.join(", "))
        }
    }
}

fn why_not(decision: &Decision) -> Vec<String> {
    decision.unfit.iter().map(|unfit| format!("Not {}.", unfit.in_words())).collect()
}

/// A fire that was or will be due, and has no run.
fn about_absence(facts: &Facts, held: &Held) -> Vec<String> {
    let is_to_come = facts.at > facts.now;
    let outlook = match &facts.owner {
        Owner::Says(outlook) => outlook,
        Owner::CannotBeAsked => {
            return vec![
                "There is no run of it in the store, and the server that owns the job cannot be asked now.".to_owned(),
            ];
        }
        Owner::HasNotTheJob => {
            return vec![
                "The server that owns the job could not load it, so it does not fire; that server's log says why."
                    .to_owned(),
            ];
        }
        Owner::NotAsked => {
            return vec![
                "There is no run of it in the store; its record was removed with the job's history.".to_owned(),
            ];
        }
    };
    if let Some(who) = who_fires(outlook) {
        let then = if is_to_come {
            "It is still to come."
        } else {
            "No run of it has come in. A node that is cut off tells what it ran when it is back."
        };
        let mut said = vec![then.to_owned(), who];
        if !outlook.disabled_on.is_empty() {
            let nodes = outlook.disabled_on.join(", ");
            said.push(format!(
                "It is disabled on this host by its local API: {nodes}. PUT /jobs/{{id}} of that API enables it again."
            ));
        }
        return said;
    }
    if is_to_come {
        let mut said = vec!["It is still to come; what follows is how things stand now.".to_owned()];
        said.extend(about_overlap(outlook, held.revision.document.overlap));
        said.extend(about_outlook(outlook, held));
        return said;
    }
    match &outlook.missed {
        Some(Due::Run) => {
            let mut said = vec!["It has not been claimed yet, and will be: it is not too late for it.".to_owned()];
            said.extend(about_outlook(outlook, held));
            said
        }
        Some(Due::Skip { reason }) => vec![format!("It has not been claimed yet, and will be recorded as skipped: {reason}.")],
        None if outlook.passed && !facts.name.starts_with(&format!("{}/", held.revision.document.namespace)) => {
            let namespace = &held.revision.document.namespace;
            vec![format!(
                "It was claimed or decided while the job was in the namespace {namespace}; its run is for those who may see that one."
            )]
        }
        None if outlook.passed => vec![
            "It was claimed or decided, and its record is gone: by the job's retention, or because runs were removed by hand."
                .to_owned(),
        ],
        None => vec!["The job's owner is about to claim it.".to_owned()],
    }
}

/// None: the owner of the job's shard.
fn who_fires(outlook: &Outlook) -> Option<String> {
    match &outlook.fired_by {
        FiredBy::Owner => None,
        FiredBy::Each(nodes) if nodes.is_empty() && !outlook.disabled_on.is_empty() => {
            Some("No node fires it at the moment.".to_owned())
        }
        FiredBy::Each(nodes) if nodes.is_empty() => {
            Some(format!("No node is meant to fire it: {}.", outlook.decision.why_nowhere()))
        }
        FiredBy::Each(nodes) => Some(format!("Each of these nodes fires it by itself: {}.", nodes.join(", "))),
        FiredBy::Home(Some(node)) => Some(format!("{node} is its home and fires it by itself.")),
        FiredBy::Home(None) => Some(format!(
            "It has no home at the moment, and nobody fires it until a node can be one: {}.",
            outlook.decision.why_nowhere()
        )),
    }
}

fn about_overlap(outlook: &Outlook, overlap: Overlap) -> Option<String> {
    if outlook.going + outlook.waiting == 0 {
        return None;
    }
    let then = match overlap {
        Overlap::Forbid => "it is skipped (overlap is forbid)",
        Overlap::Queue => "it waits (overlap is queue)",
        Overlap::Allow => return None,
        Overlap::Replace => "that one is ended first (overlap is replace)",
    };
    Some(format!("A run of the job is going; if one still is at the instant, {then}."))
}

fn about_outlook(outlook: &Outlook, held: &Held) -> Vec<String> {
    let decision = &outlook.decision;
    let mut said = Vec::new();
    match &outlook.node {
        Some(node) => {
            let promise = match (is_certain(decision), decision.by) {
                (true, _) => ", as long as the nodes stay as they are",
                (false, By::Least) => "; the least loaded one at its instant will get it",
                (false, _) => "; which one it will be depends on what is placed before it",
            };
            said.push(format!("Placed now it would go to {node}: {}{promise}.", chosen_by(decision)));
            said.extend(why_not(decision));
        }
        None => said.push(format!(
            "At the moment {}; it would wait for {} after its instant (misfire.within) and then be skipped.",
            decision.why_nowhere(),
            held.revision.document.misfire.within
        )),
    }
    said
}
